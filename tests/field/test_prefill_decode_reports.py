"""What broke other people's prefill/decode runs, each turned into the right behaviour."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.compat.server_traits import refusals_beside, stands_still
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import ServerGroup
from miles_periodic.plugins.decode_radix_cache.conflicts import FLAG
from miles_periodic.plugins.decode_radix_cache.feature import DecodeRadixCache
from miles_periodic.plugins.decode_radix_cache.proof import check_reuse
from miles_periodic.plugins.delta_router_replay import RouteRowsError, halves
from miles_periodic.plugins.kv_preservation.feature import KVPreservation

LAYERS, TOP_K = 2, 2


def text(rows):
    return base64.b64encode(np.ascontiguousarray(rows, np.int32).tobytes()).decode()


class TestDecodeNeverRanThePrompt:
    """llm-d-router#1473, vllm router#184: the first rows of a decode server are garbage."""

    def test_the_rows_of_a_prompt_are_prefills_whatever_the_decode_server_answers_for_them(self):
        true = np.arange(19 * LAYERS * TOP_K).reshape(19, LAYERS, TOP_K)
        for garbage in (0, 7, -1):
            decode = true.copy()
            decode[:15] = garbage
            joined = halves.join(
                text(true[:15]), text(decode), start=0, num_prompt_tokens=15, num_tokens=20
            )
            assert joined == text(true)

    def test_a_missing_half_is_an_error_that_names_it(self):
        decode = np.zeros((19, LAYERS, TOP_K))
        with pytest.raises(RouteRowsError, match=r"rows \[0, 15\): the prefill server"):
            halves.join(None, text(decode), start=0, num_prompt_tokens=15, num_tokens=20)


class TestPauseIsANoOpInPairs:
    """sglang#23668: the event loops of prefill and decode servers ignored the pause."""

    @pytest.mark.parametrize("role", ["prefill", "decode"])
    def test_a_pause_in_place_is_refused_where_a_loop_of_the_pair_would_run_on(
        self, unpacked, role
    ):
        old, new = (Tree.at("sglang", unpacked("sglang", v, "3.11")) for v in ("0.5.9", "0.5.11"))
        assert not stands_still(old, role) and stands_still(new, role)
        servers = ServerGroup(role, {}, stands_still=False)
        with pytest.raises(PeriodicError, match=f"{role} servers acknowledge a pause and go on"):
            KVPreservation().server_arguments(servers=servers)

    def test_a_server_of_no_pair_has_the_schedulers_own_loop(self, unpacked):
        assert stands_still(Tree.at("sglang", unpacked("sglang", "0.5.9", "3.11")), "regular")


class TestMoreCachedTokensThanThePrompt:
    """sglang#25972: `cached_tokens` of 128 for a prompt of 87 tokens."""

    def test_a_decode_server_that_says_so_ends_the_run(self):
        lengths = []

        def generate(request):
            lengths.append(len(request["input_ids"]))
            num_new = request["sampling_params"]["max_new_tokens"]
            cached = 0 if len(lengths) == 1 else lengths[-1] + 41
            return {"output_ids": [5] * num_new, "meta_info": {"cached_tokens": cached}}

        with pytest.raises(PeriodicError, match="at most"):
            check_reuse({"page_size": 16}, generate)


class TestCacheBesideOffload:
    """sglang#27666, #32170: `protected=-12` and slots freed twice, beside KV offload or drafts."""

    def test_kv_offload_is_refused_by_name_at_start(self):
        servers = ServerGroup("decode", {"disaggregation_decode_enable_offload_kvcache": True})
        with pytest.raises(
            PeriodicError, match="--sglang-disaggregation-decode-enable-offload-kvcache"
        ):
            DecodeRadixCache().server_arguments(servers=servers)

    @pytest.mark.parametrize(("version", "takes"), [("0.5.16", False), ("0.5.23", True)])
    def test_a_draft_model_is_refused_where_the_tree_cannot_have_it(self, unpacked, version, takes):
        tree = Tree.at("sglang", unpacked("sglang", version, "3.11"))
        servers = ServerGroup(
            "decode", {"speculative_algorithm": "EAGLE3"}, lambda name: refusals_beside(tree, name)
        )
        if takes:
            assert DecodeRadixCache().server_arguments(servers=servers) == {FLAG: True}
        else:
            with pytest.raises(PeriodicError, match="speculative_algorithm='EAGLE3'"):
                DecodeRadixCache().server_arguments(servers=servers)


class TestReusedPrefixShiftsTheRest:
    """sglang#24230: slots were sliced wrongly behind a reused prefix (`pre_len > 0`)."""

    @given(
        page=st.sampled_from([1, 2, 16, 64]),
        reused=st.integers(0, 200),
        fresh=st.integers(1, 90),
        response=st.integers(1, 9),
        held=st.integers(0, 290),
    )
    def test_rows_behind_a_reused_prefix_of_any_pages_are_their_own_tokens(
        self, page, reused, fresh, response, held
    ):
        """Rows live in the KV slots of a server; a reused prefix brings its own slots along."""
        reused = reused // page * page
        num_prompt, start = reused + fresh, min(held, reused + fresh)
        num_tokens = num_prompt + response
        true = np.arange((num_tokens - 1) * LAYERS * TOP_K).reshape(-1, LAYERS, TOP_K)
        prefill = Slots(page)
        slots = [*prefill.take(true[:reused]), *prefill.take(true[reused:num_prompt])]
        decode = Slots(page)
        behind = [*decode.take(np.zeros_like(true[:num_prompt])), *decode.take(true[num_prompt:])]
        joined = halves.join(
            text(prefill.rows[slots[start:]]),
            text(decode.rows[behind[start:]]),
            start=start,
            num_prompt_tokens=num_prompt,
            num_tokens=num_tokens,
        )
        assert joined == text(true[start:])


class Slots:
    """A server's buffer of rows by KV slot, handed out in whole pages, the last ones first."""

    def __init__(self, page: int, num_pages: int = 512) -> None:
        self.page, self.free = page, list(range(num_pages))
        self.rows = np.full((page * num_pages, LAYERS, TOP_K), -1)

    def take(self, rows):
        """The slots into which some tokens' rows were put."""
        pages = [self.free.pop() for _ in range(-(-len(rows) // self.page))]
        slots = [page * self.page + i for page in pages for i in range(self.page)][: len(rows)]
        self.rows[slots] = rows
        return slots
