"""Requests about subjects that become others and messages that are copied, as they are played against real servers and
ours."""

from __future__ import annotations

from typing import Any

from tests.broker.streams.conversations import create, of, update


def _mapped(source: str, destination: str, *subjects: str) -> list[Any]:
    """A stream that maps subjects, and what becomes of some."""
    config = {"src": source, "dest": destination}
    made: list[Any] = [create("S", subjects=["s.>"], storage="memory", subject_transform=config)]
    for i, subject in enumerate(subjects):
        made += [(subject, "x"), of("MSG.GET", "S", {"seq": i + 1})]
    return [*made, of("DELETE", "S")]


def _not_mapped(destination: str, source: str = "s.*") -> Any:
    return create("S", subjects=["s.>"], subject_transform={"src": source, "dest": destination})


MAPPINGS = [
    *_mapped("s.*.*", "x.$2.$1", "s.a.b", "s.a", "s.a.b.c"),
    *_mapped("", "y.>", "s.a.b"),
    *_mapped("s.*.>", "y.{{wildcard(1)}}.>", "s.a.b.c"),
    *_mapped("s.*", "", "s.a"),
    *_mapped("s.*", "z.{{partition(5,1)}}.{{wildcard(1)}}", "s.hello", "s.a", "s.b"),
    *_mapped("s.*.*", "z.{{partition(7,1,2)}}", "s.hello.world"),
    *_mapped("s.*", "z.{{partition(9)}}", "s.foo"),
    *_mapped("s.*", "z.{{split(1,-)}}", "s.-a-b--c-"),
    *_mapped("s.*", "z.{{splitFromLeft(1,3)}}.{{splitfromright(1,3)}}", "s.12345", "s.12"),
    *_mapped("s.*", "z.{{SliceFromLeft(1,3)}}.{{slicefromright(1,3)}}", "s.1234567890", "s.123"),
    *_mapped("s.*", "z.{{left(1,2)}}.{{ right( 1 , 2 ) }}", "s.12345", "s.1"),
    *_mapped("s.*", "z.{{random(1)}}", "s.a"),
    *_mapped("s.*", "z.a{{wildcard(1)}}.$1x.$0", "s.a"),
    *_mapped("q.*", "z.$1", "s.a"),
    *map(
        _not_mapped,
        (
            "z.*", "z..q", "z.{{wildcard(9)}}", "z.$9", "z.{{wildcard()}}", "z.{{wildcard(a)}}", "z.{{wildcard(1,2)}}",
            "z.{{foo(1)}}", "z.{{partition(x,1)}}", "z.{{partition(3,9)}}", "z.{{split(1)}}", "z.{{left(1)}}",
            "z.{{left(1,x)}}", "z.{{random(x)}}",
        ),
    ),
    _not_mapped("z.>.q", "s.>"),
    _not_mapped("z.q", "s.>"),
    _not_mapped("z", "s.."),
    create("T", subjects=["t.>"], subject_transform={"src": "t.>", "dest": "u.>"}, max_msgs_per_subject=1),
    ("t.a", "1"),
    ("t.a", "2", {"Nats-Expected-Last-Subject-Sequence": "1"}),
    ("t.a", "3", {"Nats-Expected-Last-Subject-Sequence": "0"}),
    of("INFO", "T", {"subjects_filter": ">"}),
    of("MSG.GET", "T", {"last_by_subj": "t.a"}),
    of("MSG.GET", "T", {"last_by_subj": "u.a"}),
    update("T", subjects=["t.>"], subject_transform={"src": "t.>", "dest": "v.>"}, max_msgs_per_subject=1),
    ("t.a", "4"),
    of("INFO", "T", {"subjects_filter": ">"}),
]  # fmt: skip


def _again(source: str, destination: str, **options: Any) -> Any:
    """A stream that publishes again."""
    return create("R", subjects=["r.>"], republish={"src": source, "dest": destination, **options})


REPUBLISHES = [
    _again("r.>", "r.again.>"),
    _again("a", "r.again"),
    _again("a", "b.*"),
    _again("r.*", "b.{{wildcard(2)}}"),
    _again("r.>", ""),
    of("DELETE", "R"),
    _again("", "again.>", headers_only=True),
    of("INFO", "R"),
    update("R", subjects=["r.>"]),
    update("R", subjects=["r.>"], republish={"src": "none", "dest": "b"}),
]


def _mirror(name: str, origin: Any = "O", **config: Any) -> Any:
    values = {"name": origin} if isinstance(origin, str) else {"name": "O", **origin}
    return create(name, mirror=values, storage="memory", **config)


def _source(*origins: dict[str, Any], name: str = "X", **config: Any) -> Any:
    return create(name, sources=[{"name": "O", **each} for each in origins], storage="memory", **config)


def _mapping(source: str, destination: str) -> dict[str, str]:
    return {"src": source, "dest": destination}


#: Configurations, and what is said of them at once; what is copied is told apart, as it takes its time.
ORIGINS = [
    create("O", subjects=["o.>"], storage="memory", max_msg_size=100, allow_direct=True),
    _mirror("M"),
    _mirror("M"),
    _mirror("M", {"opt_start_seq": 4}),
    _mirror("M2", {"opt_start_seq": 4}, allow_direct=True, allow_rollup_hdrs=True),
    _mirror("M3", {"subject_transforms": [_mapping("o.a", "n.a"), _mapping("o.b", "")]}),
    _mirror("M4", {"opt_start_time": "2020-01-01T00:00:00Z"}, duplicate_window=1_000_000_000),
    ("M", "nobody listens"),
    *(
        _mirror("X", origin, **config)
        for origin, config in (
            ("O", {"subjects": ["q"]}),
            ("O", {"sources": [{"name": "O"}]}),
            ("O.O", {}),
            ("", {}),
            ("X", {}),
            ("O", {"first_seq": 5}),
            ("O", {"max_msg_size": 5}),
            ({"filter_subject": "o..a"}, {}),
            ({"filter_subject": "o.a", "subject_transforms": [_mapping("o.a", "n.a")]}, {}),
            ({"subject_transforms": [_mapping("o..a", "n.a")]}, {}),
            ({"subject_transforms": [_mapping("o.a", "n..a")]}, {}),
            ({"subject_transforms": [_mapping("o.a", "n.a"), _mapping("o.*", "q.a")]}, {}),
            ({"opt_start_time": "soon"}, {}),
            ({"odd": 1}, {}),
        )
    ),
    create("X", mirror={}),
    create("X", subjects=["x"], mirror_direct=True),
    update("M", mirror={"name": "O"}, storage="memory", max_msgs=3),
    update("M", mirror={"name": "M2"}, storage="memory"),
    update("M3", storage="memory", subjects=["m3"]),
    _source({"filter_subject": "o.a"}, name="S"),
    _source({"filter_subject": "o.a"}, name="S"),
    _source({"subject_transforms": [_mapping("o.a", "n.a")]}, name="S2", subjects=["s2.>"]),
    _source({}, {}),
    _source({"name": ""}),
    _source({"name": "a.b"}),
    _source({"filter_subject": "o..a"}),
    _source({"filter_subject": "o.a", "subject_transforms": [_mapping("o.a", "n.a")]}),
    _source({"subject_transforms": [_mapping("o.a", "n..a")]}),
    _source({"subject_transforms": [_mapping("o..a", "n.a")]}),
    _source({"subject_transforms": [_mapping("o.*", "n.a"), _mapping("o.a", "n.b")]}),
    _source({}, max_msg_size=5),
    _source({"name": "X"}, subjects=["x"]),
    _source({"name": "S4"}, name="S3"),
    _source({"name": "S3"}, name="S4"),
    update("S", storage="memory", sources=[{"name": "O"}]),
    update("S", storage="memory"),
    ("o.a", "x", {"Nats-Stream-Source": "O 1"}),
]


def _of(*origins: str | tuple[str, str]) -> list[dict[str, Any]]:
    """Sources by name, or name and filter."""
    named = ((each, "") if isinstance(each, str) else each for each in origins)
    return [{"name": name, **({"filter_subject": only} if only else {})} for name, only in named]


def _gather(name: str, *origins: str | tuple[str, str], **config: Any) -> Any:
    return create(name, sources=_of(*origins), storage="memory", **config)


#: Streams that have their messages on two ways, or from themselves: what is refused depends on the order of sources, on
#: filters and on subjects.
CYCLES = [
    create("D", subjects=["d.>"], storage="memory"),
    *(_gather(name, "D") for name in ("B", "C")),
    _gather("B1", "D", subjects=["b1.>"]),
    _gather("B2", ("D", "d.a"), subjects=["b2.>"]),
    _gather("B3", ("D", "d.a")),
    _gather("B4", ("D", "b4.a"), subjects=["b4.>"]),
    create("M", mirror={"name": "D"}, storage="memory"),
    create("MB", mirror={"name": "B"}, storage="memory"),
    *(
        _gather(f"S{i}", *origins)
        for i, origins in enumerate(
            (
                ("B", "C"), ("B", "D"), ("D", "B"), ("D", "B1"), ("D", "B2"), ("D", "B3"), ("D", "B4"), ("D", "M"),
                ("M", "D"), ("M", "B"), ("B", "M"), ("D", "MB"), ("MB", "D"), ("B", "MB"), ("MB", "B"), ("C", "MB"),
                (("D", "d.a"), "B"), ("D", ("B", "d.a")), (("D", "d.a"), ("D", "d.b")), ("M", "M"),
            )
        )
    ),
    _gather("T", "S0", "B"),
    _gather("U", "B", "S0"),
    _gather("V", "S0", "S1"),
    _gather("G", "G", subjects=["g"]),
    _gather("G", ("G", "h"), subjects=["g"]),
    _gather("H1", "H2", subjects=["h1"]),
    _gather("H2", "H1", subjects=["h2"]),
    _gather("I1", ("I2", "x"), subjects=["i1"]),
    _gather("I2", ("I1", "y"), subjects=["i2"]),
    _gather("J1", ("J2", "x"), subjects=["j1"]),
    _gather("J2", ("J1", "j1"), subjects=["j2"]),
    _gather("K1", ("K2", "k1"), subjects=["k1"]),
    _gather("K2", ("K1", "x"), subjects=["k2"]),
    _gather("L1", "L2"),
    create("L2", mirror={"name": "L1"}, storage="memory"),
    create("N1", mirror={"name": "N2"}, storage="memory"),
    create("N2", mirror={"name": "N1"}, storage="memory"),
    create("N3", mirror={"name": "N1"}, storage="memory"),
    create("O", subjects=["oo"], storage="memory"),
    update("O", subjects=["oo"], storage="memory", sources=_of("D", "B")),
    update("O", subjects=["oo"], storage="memory", sources=_of("B", "D")),
    update("D", subjects=["d.>"], storage="memory", sources=_of("B")),
]  # fmt: skip
