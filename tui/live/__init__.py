"""Running servers: their monitoring and JetStream information as models, independent of the terminal."""
