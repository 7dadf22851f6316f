"""A field is native when it is declared and consumed; else the last hop and the gap are named."""

import pytest

from miles_periodic.compat.follow import follow

IO = "srt/managers/io_struct.py"
TOKENIZER = "srt/managers/tokenizer_manager.py"
BATCH = "srt/managers/schedule_batch.py"
SCHEDULER = "srt/managers/scheduler.py"
COLLECTOR = "srt/managers/collector.py"


@pytest.fixture
def trail(made_tree):
    def made(changes=None, field="start_row", **options):
        return follow(made_tree(changes), "GenerateReqInput", field, ("srt",), **options)

    return made


def files(evidence):
    return [e.path.rpartition("/")[2] for e in evidence]


def test_a_field_that_reaches_a_slice_is_consumed(trail):
    found = trail()
    assert str(found.consumer).startswith("sglang/srt/managers/collector.py:3: Collector.collect")
    assert files(found.hops) == [
        "io_struct.py",
        "tokenizer_manager.py",
        "scheduler.py",
        "schedule_batch.py",
    ]


def test_evidence_stands_at_the_line_of_the_keyword(trail):
    found = trail(
        {
            TOKENIZER: (
                "text=obj.text, start_row=obj.start_row",
                "\n  text=obj.text,\n  start_row=obj.start_row",
            )
        }
    )
    assert [e.line for e in found.hops if "tokenizer" in e.path] == [5]


def test_a_field_that_is_not_declared_has_no_hops(trail):
    found = trail(field="end_row")
    assert (found.hops, found.consumer) == ((), None)
    assert found.missing == "GenerateReqInput declares no field end_row"


def test_a_field_that_nothing_reads_stops_at_its_declaration(trail):
    found = trail({TOKENIZER: (", start_row=obj.start_row", "")})
    assert found.consumer is None
    assert [e.line for e in found.hops] == [6]
    assert "TokenizedGenerateReqInput.start_row exists" in found.unreached[0].what


def test_a_dropped_keyword_in_the_scheduler_is_named_as_the_gap(trail):
    found = trail({SCHEDULER: (", start_row=recv_req.start_row", "")})
    assert found.consumer is None
    assert files(found.hops)[-1] == "tokenizer_manager.py"
    assert found.missing.startswith("nothing consumes TokenizedGenerateReqInput.start_row")
    assert [e.what for e in found.unreached] == [
        "Req.start_row exists, but nothing gives it the value"
    ]


def test_a_collector_that_does_not_read_it_leaves_it_unconsumed(trail):
    found = trail({COLLECTOR: ("[req.start_row :]", "[:]")})
    assert found.consumer is None
    assert found.hops[-1].what == "Req.__init__ sets self.start_row"


def test_a_request_that_does_not_keep_it_leaves_it_unconsumed(trail):
    found = trail({BATCH: ("self.start_row = start_row", "pass")})
    assert found.consumer is None
    assert files(found.hops)[-1] == "scheduler.py"


def test_a_keyword_that_the_constructor_does_not_take_is_a_dead_end(trail):
    found = trail(
        {BATCH: (", start_row=0", ""), SCHEDULER: ("start_row=recv_req", "first=recv_req")}
    )
    assert found.consumer is None


RENAMES = {
    "attribute": {
        BATCH: ("self.start_row = start_row", "self.first = start_row"),
        COLLECTOR: ("req.start_row", "req.first"),
    },
    "keyword": {
        BATCH: "class Req:\n    def __init__(self, text, first=0):\n        self.first = first\n",
        SCHEDULER: ("start_row=recv_req.start_row", "first=recv_req.start_row"),
        COLLECTOR: ("req.start_row", "req.first"),
    },
    "local": {
        COLLECTOR: "def collect(req, rows):\n    first = req.start_row\n    return rows[first:]\n"
    },
    "getattr": {COLLECTOR: ("req.start_row", "getattr(req, 'start_row', 0)")},
    "setattr": {
        BATCH: ("self.start_row = start_row", "setattr(self, 'first', start_row)"),
        COLLECTOR: ("req.start_row", "req.first"),
    },
    "property": {
        BATCH: """
            class Req:
                def __init__(self, text, start_row=0):
                    self.start_row = start_row

                @property
                def first(self):
                    return self.start_row
            """,
        COLLECTOR: ("req.start_row", "req.first"),
    },
    "walrus": {
        COLLECTOR: "def collect(req, rows):\n    if (first := req.start_row) > 0:\n"
        "        return rows[first:]\n"
    },
}


@pytest.mark.parametrize("changes", RENAMES.values(), ids=RENAMES)
def test_a_field_read_under_another_name_is_followed(trail, changes):
    found = trail(changes)
    assert found.consumer is not None, found.missing
    assert found.consumer.path.endswith("collector.py")


def test_evidence_names_the_other_name(trail):
    found = trail(RENAMES["attribute"])
    assert "Req.__init__ sets self.first" in [e.what for e in found.hops]


CARRIERS = {
    "positional argument": {SCHEDULER: ("start_row=recv_req.start_row", "recv_req.start_row")},
    "forwarded keywords": {
        SCHEDULER: """
            class Scheduler:
                def make(self, *args, **kwargs):
                    return Req(*args, **kwargs)

                def handle(self, recv_req: TokenizedGenerateReqInput):
                    return self.make(recv_req.text, start_row=recv_req.start_row)
            """
    },
    "class behind a name": {
        TOKENIZER: """
            class TokenizerManager:
                made = TokenizedGenerateReqInput

                def tokenize(self, obj):
                    return self.made(text=obj.text, start_row=obj.start_row)
            """
    },
    "function that slices": {
        COLLECTOR: """
            def gather(rows, start_row):
                return rows[start_row:]

            def collect(req, rows):
                return gather(rows, start_row=max(0, req.start_row))
            """
    },
    "msgspec struct": {
        IO: """
            class GenerateReqInput:
                start_row: int = 0

            class TokenizedGenerateReqInput(BaseReq, kw_only=True):
                text: str = ""
                start_row: int = 0
            """
    },
}


@pytest.mark.parametrize("changes", CARRIERS.values(), ids=CARRIERS)
def test_a_value_is_followed_through(trail, changes):
    assert trail(changes).consumer is not None


NOT_CONSUMED = {
    "log line": "def collect(req):\n    logger.info('from %d', req.start_row)\n",
    "message": "def collect(req, rows):\n    raise ValueError(f'{req.start_row}')\n",
    "check": "def collect(req):\n    if req.start_row > 9:\n        raise ValueError\n",
    "assertion": "def collect(req, rows):\n    assert req.start_row >= 0\n    return rows\n",
    "count that is only compared": """
        def collect(req, rows):
            expected = len(rows) - req.start_row
            if len(rows) != expected:
                logger.warning("wrong")
            return rows
        """,
    "function that only checks": """
        def check(start_row):
            if start_row < 0:
                raise ValueError("negative")

        def collect(req, rows):
            check(req.start_row)
            return rows
        """,
    "function that ignores it": """
        def gather(rows, start_row):
            return rows

        def collect(req, rows):
            return gather(rows, start_row=req.start_row)
        """,
    "dictionary for a dump": "def dump(req):\n    return {'start_row': req.start_row}\n",
}


@pytest.mark.parametrize("collector", NOT_CONSUMED.values(), ids=NOT_CONSUMED)
def test_what_does_not_decide_anything_is_not_consumption(trail, collector):
    found = trail({COLLECTOR: collector})
    assert found.consumer is None, found.consumer


CONSUMED = {
    "index": "def collect(req, rows):\n    return rows[req.start_row]\n",
    "arithmetic": "def collect(req, rows):\n    return len(rows) - req.start_row\n",
    "call of others": "def collect(req, rows):\n    return torch.narrow(rows, 0, req.start_row)\n",
    "branch": "def collect(req, rows):\n    if req.start_row:\n        trim(rows)\n",
    "gate": "def collect(req, rows):\n    if not req.start_row:\n        return\n    trim(rows)\n",
    "choice": "def collect(req, rows):\n    return rows if req.start_row else None\n",
    "loop": "def collect(req, rows):\n    while req.start_row:\n        rows.pop()\n",
}


@pytest.mark.parametrize("collector", CONSUMED.values(), ids=CONSUMED)
def test_what_decides_something_is_consumption(trail, collector):
    found = trail({COLLECTOR: collector})
    assert found.consumer is not None, found.missing


def test_a_read_of_another_class_with_the_same_field_is_no_read(trail):
    found = trail(
        {
            COLLECTOR: "def collect(other: Other, rows):\n    return rows[other.start_row:]\n",
            "srt/managers/other.py": "class Other:\n    start_row: int = 0\n",
        }
    )
    assert found.consumer is None


def test_what_only_a_side_path_delivers_is_not_delivered(trail):
    changes = {
        SCHEDULER: (", start_row=recv_req.start_row", ""),
        "srt/managers/session.py": """
            def create(req: TokenizedGenerateReqInput):
                return Req(req.text, start_row=req.start_row)
            """,
    }
    assert trail(changes).consumer is not None
    assert trail(changes, without=("srt/managers/session.py",)).consumer is None


def test_a_value_must_get_through_the_class_that_is_asked_for(trail):
    changes = {
        COLLECTOR: """
            class RadixKey:
                def __init__(self, tokens, salt):
                    self.salt = salt

                def child_key(self):
                    return (self.salt, self.tokens[0])

            def match(req):
                return RadixKey(req.text, req.start_row)

            def other(req, rows):
                return rows[req.start_row :]
            """
    }
    found = trail(changes, through="RadixKey")
    assert found.consumer.what == "RadixKey.child_key returns what it made of it"
    assert trail({}, through="RadixKey").consumer is None


def test_a_version_string_decides_nothing(trail):
    honest = trail()
    lying = trail({"version.py": "__version__ = '0.0.1'\n"})
    assert honest.consumer == lying.consumer
