"""What the Grafana dashboard shows: each panel with its queries."""

from __future__ import annotations

Panel = tuple[str, str, list[tuple[str, str]]]


def _read_ratio(labels: str) -> str:
    """The KV read ratio for each value of some of the labels of prompts, weighted by tokens."""
    tokens = "rate(triptych_router_prompt_tokens_total{}[5m])"
    read = tokens.format('{kind="cache_read"}')
    return f"sum by ({labels}) ({read}) / sum by ({labels}) ({tokens.format('')})"


# (title, unit, [(query, legend)]); a row of panels has one heading.
ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Requests",
        [
            ("Answers a second", "reqps", [("triptych:requests:rate5m", "{{status}}")]),
            (
                "First token",
                "s",
                [("triptych:first_token_seconds:p50", "p50"), ("triptych:first_token_seconds:p99", "p99")],
            ),
            (
                "Between two tokens",
                "s",
                [("triptych:inter_token_seconds:p50", "p50"), ("triptych:inter_token_seconds:p99", "p99")],
            ),
            ("Tokens a second", "short", [("triptych:completion_tokens:rate5m", "completion")]),
            ("Time by stage (p99)", "s", [("triptych:request_stage_seconds:p99", "{{stage}}")]),
            (
                "Running and waiting",
                "short",
                [
                    ("sum(triptych_router_running_requests)", "running"),
                    ("sum(triptych_router_queued_requests)", "waiting"),
                ],
            ),
            (
                "Moved to other workers",
                "reqps",
                [
                    ("sum by (reason) (rate(triptych_router_retries_total[5m]))", "{{reason}}"),
                    ("sum(rate(triptych_router_failovers_total[5m]))", "answered all the same"),
                    ("sum by (reason) (rate(triptych_router_gave_up_total[5m]))", "given up: {{reason}}"),
                ],
            ),
            ("Turned away", "reqps", [("sum by (reason) (rate(triptych_router_shed_total[5m]))", "{{reason}}")]),
        ],
    ),
    (
        "KV prefix cache (weighted by tokens)",
        [
            (
                "Read, written, neither",
                "percentunit",
                [
                    ("triptych:kv_read_ratio:5m", "read"),
                    ("triptych:kv_write_ratio:5m", "written"),
                    ("triptych:kv_uncached_ratio:5m", "neither"),
                ],
            ),
            (
                "Read ratio by content",
                "percentunit",
                [(_read_ratio("content, conversation"), "{{content}}, {{conversation}} turn")],
            ),
            (
                "Cached tokens a second",
                "short",
                [
                    ("sum(rate(triptych_router_matched_tokens_total[5m]))", "announced to the router"),
                    ('sum(rate(triptych_router_tokens_total{kind="cache_read"}[5m]))', "read"),
                ],
            ),
            ("Read ratio by policy", "percentunit", [(_read_ratio("context_policy"), "{{context_policy}}")]),
            ("Read ratio by turn", "percentunit", [(_read_ratio("turn"), "turn {{turn}}")]),
            ("Read ratio by prompt length", "percentunit", [(_read_ratio("input_tokens"), "{{input_tokens}}")]),
            (
                "Read ratio when history was cut",
                "percentunit",
                [
                    (_read_ratio("image_evicted"), "picture removed: {{image_evicted}}"),
                    (_read_ratio("summarised"), "summarised: {{summarised}}"),
                ],
            ),
            ("KV moved", "Bps", [("triptych:kv_transfer_bytes:rate5m", "{{direction}} by {{path}}")]),
            (
                "Transfers",
                "ops",
                [("sum by (direction) (rate(triptych_kv_transfers_total[5m]))", "{{direction}}")],
            ),
            ("Blocks", "short", [("sum by (job, state) (triptych_kv_blocks)", "{{job}} {{state}}")]),
            (
                "Preemptions",
                "ops",
                [("sum by (instance) (rate(triptych_worker_preemptions_total[5m]))", "{{instance}}")],
            ),
        ],
    ),
    (
        "Embedding cache",
        [
            ("Hits of all needed", "percentunit", [("triptych:embedding_hit_ratio:5m", "hit")]),
            ("Saved because pictures repeat", "percentunit", [("triptych:image_dedup_ratio:5m", "of all occurrences")]),
            (
                "Where embeddings are found",
                "ops",
                [("sum by (stage, found) (rate(triptych_store_lookups_total[5m]))", "{{stage}}: {{found}}")],
            ),
            ("Store", "bytes", [("max(triptych_store_bytes)", "bytes")]),
            ("Evicted", "ops", [("sum by (policy) (rate(triptych_store_evictions_total[5m]))", "{{policy}}")]),
            ("Past the store", "ops", [("sum by (reason) (rate(triptych_encoder_direct_total[5m]))", "{{reason}}")]),
            ("Waited for another encoder", "ops", [("sum(rate(triptych_store_waits_total[5m]))", "waits")]),
        ],
    ),
    (
        "Workers",
        [
            (
                "Requests by stage",
                "short",
                [("sum by (stage, state) (triptych_worker_requests)", "{{stage}} {{state}}")],
            ),
            (
                "Tokens to compute",
                "short",
                [
                    ("sum by (stage) (triptych_worker_pending_tokens)", "{{stage}}"),
                    ("sum(triptych_encoder_pending_tokens)", "encoder"),
                ],
            ),
            (
                "Visual tokens encoded a second",
                "short",
                [("sum(rate(triptych_encoder_visual_tokens_total[5m]))", "tokens")],
            ),
            ("Waiting, computing, moving (p99)", "s", [("triptych:stage_seconds:p99", "{{stage}}: {{part}}")]),
            ("Versions", "short", [("count by (version) (triptych_build_info)", "{{version}}")]),
        ],
    ),
]
