"""The tests of upstream's 28 advisories, or the reason why a test is missing.

Takes: nothing.
Gives: INDEX, which test_index.py keeps complete and correct.
Source: docs/behaviour/lessons 4.2 (its numbers).
"""

from typing import Final, NamedTuple


class Row(NamedTuple):
    """One advisory: its ids, its tests as ``file::function``, and the missing part.

    ``later`` names the part that cannot be tested yet; a row has tests, ``later``, or
    both.
    """

    ids: str
    tests: tuple[str, ...] = ()
    later: str = ""


_ENGINE: Final = "tests/unit/advisories/test_engine.py::"
_POLICIES: Final = "tests/unit/advisories/test_policies.py::"
_REACH: Final = "tests/unit/advisories/test_egress.py::"
_PATHS: Final = "tests/unit/egress/test_paths.py::"
_SERVICES: Final = "tests/unit/egress/test_services.py::"
_HOSTILE: Final = "tests/registry/test_hostile.py::"
_VERIFYING: Final = "tests/unit/cli/apply/test_verify_images.py::"
_RECORDS: Final = "tests/unit/webhook/images/test_image_records.py::"
_WEBHOOKS: Final = "tests/unit/webhook/images/test_images.py::"
_NOTARY: Final = "tests/images/test_notary_images.py::"
_KEYLESS: Final = "tests/images/test_keyless.py::"
_BUNDLES: Final = "tests/images/test_bundles.py::"
_NO_TOKEN: Final = f"{_SERVICES}test_cve_2026_41323_and_40868_services_get_no_token"
_NO_READ: Final = f"{_HOSTILE}test_ghsa_wc3x_4mp4_reads_are_bounded"
_SSRF: Final = f"{_SERVICES}test_ghsa_459x_q9hg_4gpq_ssrf"
_BOUNDED: Final = (
    _NO_READ,
    f"{_VERIFYING}test_too_many_signatures_are_not_read",
    f"{_VERIFYING}test_oversized_signatures_are_not_read",
    f"{_NOTARY}test_at_most_ten_signatures_are_tried",
    f"{_NOTARY}test_too_many_referrers",
    f"{_BUNDLES}test_bounds",
)

INDEX: Final[dict[int, Row]] = {
    1: Row(
        "CVE-2022-47633 GHSA-m3cq-xcx9-3gvm",
        (
            "tests/registry/test_image_data.py::test_image_is_looked_up_once",
            f"{_VERIFYING}test_moving_tag_is_resolved_once",
            f"{_RECORDS}test_all_blocks_verify_the_same_digest",
            f"{_WEBHOOKS}test_results_are_shared_until_the_tag_moves",
        ),
    ),
    2: Row(
        "CVE-2023-33191 GHSA-33hq-f2mf-jm3c",
        (f"{_ENGINE}test_seccomp_is_checked_in_every_place_and_version",),
    ),
    3: Row(
        "GHSA-hgv6-w7r3-w4qw",
        ("tests/unit/webhook/http/test_tls.py::test_six_tls_1_2_suites_are_offered",),
    ),
    4: Row(
        "CVE-2023-34091 GHSA-hq4m-4948-64cc",
        (
            f"{_ENGINE}test_terminating_objects_are_evaluated",
            f"{_ENGINE}test_ephemeral_containers_are_evaluated",
        ),
    ),
    5: Row("CVE-2023-42813 GHSA-wc3x", _BOUNDED),
    6: Row("CVE-2023-42814 GHSA-9g37", _BOUNDED),
    7: Row("CVE-2023-42815 GHSA-hjpv", _BOUNDED),
    8: Row("CVE-2023-42816 GHSA-4mp4", _BOUNDED),
    9: Row(
        "CVE-2023-47630 GHSA-3hfq-cx9j-923w",
        (f"{_HOSTILE}test_ghsa_3hfq_cx9j_923w_content_differs_from_its_digest",),
    ),
    10: Row("CVE-2023-46737", _BOUNDED),
    11: Row(
        "CVE-2024-48921 GHSA-qjvc-p88j-j9rm",
        (f"{_REACH}test_exceptions_apply_only_in_configured_namespaces",),
    ),
    12: Row(
        "CVE-2025-29778 GHSA-46mp-8w32-6g94",
        (
            f"{_POLICIES}test_all_match_fields_are_tested",
            f"{_POLICIES}test_every_match_field_is_evaluated",
            "tests/unit/images/test_fields.py::test_every_field_of_an_attestor_decides",
            f"{_KEYLESS}test_identities",
            f"{_BUNDLES}test_identities",
        ),
    ),
    13: Row("GHSA-459x-q9hg-4gpq", (_SSRF,)),
    14: Row(
        "CVE-2025-46342 GHSA-jrr2-x33p-6hvc",
        (f"{_ENGINE}test_matching_error_is_not_a_mismatch",),
    ),
    15: Row(
        "CVE-2025-47281 GHSA-r5p3-955p-5ggq",
        (f"{_ENGINE}test_no_expression_crashes_a_worker",),
    ),
    16: Row(
        "GHSA-gg4x-fgg2-h9w9 GO-2026-4285",
        (f"{_ENGINE}test_two_exceptions_exempt_only_their_union",),
    ),
    17: Row(
        "CVE-2026-22039 GHSA-8p9x-46gm-qfx2",
        (
            f"{_REACH}test_api_calls_stay_in_the_namespace",
            f"{_PATHS}test_cve_2026_22039_namespaced_api_call_paths",
        ),
    ),
    18: Row(
        "CVE-2026-23881 GHSA-r2rj-wwm5-x6mq",
        (f"{_ENGINE}test_variables_cannot_multiply_without_bound",),
    ),
    19: Row("GHSA-8wfp-579w-6r25", (_NO_TOKEN,)),
    20: Row(
        "CVE-2026-41323 GHSA-f9g8-6ppc-pqq4",
        (_NO_TOKEN, f"{_SERVICES}test_redirects_are_not_followed"),
    ),
    21: Row("CVE-2026-40868 GHSA-q93q-v844-jrqp", (_NO_TOKEN,)),
    22: Row(
        "GHSA-fmqp-4wfc-w3v7",
        (
            f"{_SERVICES}test_ghsa_fmqp_4wfc_w3v7_namespaced_policies_call_no_services",
            f"{_REACH}test_namespaced_policies_cannot_call_services",
        ),
    ),
    23: Row("GHSA-qr4g-8hrp-c4rw", (_SSRF,)),
    24: Row(
        "CVE-2026-4789 GHSA-rggm-jjmc-3394",
        (
            f"{_REACH}test_cel_of_namespaced_policies_has_no_http_library",
            f"{_POLICIES}test_cel_of_rules_cannot_call_out",
        ),
        later="policies in CEL: their namespaced kinds get no http library by default",
    ),
    25: Row(
        "CVE-2026-41068 GHSA-cvq5-hhx3-f99p",
        (
            f"{_REACH}test_config_maps_stay_in_the_namespace",
            f"{_REACH}test_parameters_stay_in_the_namespace",
        ),
    ),
    26: Row(
        "CVE-2026-41485 GHSA-fpjq-c37h-cqcv",
        (
            f"{_ENGINE}test_odd_elements_in_foreach_crash_no_worker",
            f"{_POLICIES}test_malformed_patches_in_foreach_crash_no_process",
        ),
    ),
    27: Row(
        "GHSA-79gf-7frw-68m9",
        (f"{_PATHS}test_ghsa_79gf_7frw_68m9_namespaced_writes",),
    ),
    28: Row(
        "CVE-2026-44245 GHSA-q98m-7w8c-w388",
        (f"{_POLICIES}test_object_values_are_never_markup",),
    ),
}
