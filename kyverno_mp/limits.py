"""Every bound of the program, each with its reason.

Room: limits (below every other). Units stand last in the names. A bound that an
operator may change has a setting in ``settings`` whose default is the value here.
"""

BODY_BYTES_MAX = 10 * 1024 * 1024
"""An AdmissionReview: etcd stores at most 1.5 MiB an object and a review carries the
object twice plus managed fields; controller-runtime allows 7 MiB; we leave room."""

JSON_DEPTH_MAX = 512
"""Nesting of a review or a policy. Kubernetes objects stay below 60; beyond a few
thousand a recursive walk would exhaust the C stack."""

EXPRESSION_TEXT_BYTES_MAX = 64 * 1024
"""One JMESPath or template text; the longest seen in public policies is below 4 KiB."""

EXPRESSION_DEPTH_MAX = 200
"""Nesting of one expression's syntax tree; guards the recursive linker."""

EXPRESSION_STEPS_MAX = 1_000_000
"""Elements visited and functions called by all expressions of one rule on one request;
about half a second of one core."""

STEPS_BETWEEN_LOOKS = 256
"""Steps between two looks at the clock: about a tenth of a millisecond, where deadlines
are seconds."""

EXPRESSION_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of text that the expressions of one rule may build on one request."""

CONTEXT_BYTES_MAX = 2 * 1024 * 1024
"""Kyverno's maxContextSize: cumulative size of context entries (engine.md 1.8)."""

CONTEXT_BYTES_HIGHEST = 1 << 30
"""The most that maxContextSize may ask for, and what "no limit" means: a worker with
more would be killed for its memory."""

SUBSTITUTION_ROUNDS_MAX = 64
"""Re-scans of one string for variables (engine.md 3.1 step 9); a value that contains
its own variable would otherwise never end."""

PARSE_CACHE_ENTRIES_MAX = 4096
"""Memoised parses of expressions and patterns that are known only at run time."""

AUDIT_QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of the reviews that wait for their audit in one worker: as decoded objects they
take about ten times as much, and a thousand of BODY_BYTES_MAX would fill the machine.
What does not fit is counted as dropped, like what is over the queue's length."""

REQUEST_TIMEOUT_S_MAX = 30.0
"""The API server never waits longer for a webhook."""

SUBSTITUTION_DEPTH_MAX = 256
"""Nesting of a document with variables, the data that its variables return included;
each level is one Python frame of a recursive walk, and the interpreter allows 1,000."""

KIND_MEMO_ENTRIES_MAX = 1024
"""Kinds remembered per list of kind selectors; a large cluster serves a few hundred."""

POLICY_FILE_BYTES_MAX = 64 * 1024 * 1024
"""One file of policies; all 400 sample policies of Kyverno together are below 2 MiB."""

POLICY_FILE_NODES_MAX = 2_000_000
"""Nodes of one file with every alias written out, some ten seconds of one core; 10,000
policies have half as many."""

WATCHED_FILE_BYTES_MAX = 16 * 1024 * 1024
"""One file of a watched folder: while the leader reads it, no other policy changes."""

POLICY_RULES_MAX = 1000
"""Rules of one policy as written: about a second of the leader's time; etcd's limit of
1.5 MiB an object allows some 10,000, public policies have up to 30."""

STATUS_TEXT_LENGTH_MAX = 2000
"""One text in the status of a policy; errors may quote whole expressions."""

INDEX_KEYS_PER_FILTER_MAX = 4096
"""Index keys of one match filter (kinds x operations x values); a filter with more is
entered under a coarser criterion, so that no policy can swell the snapshot."""

CANDIDATE_PLANS_MAX = 2048
"""Pairs of kind and operation whose plan a worker remembers."""

CANDIDATE_MEMO_ENTRIES_MAX = 1024
"""Values (namespaces, names, users) remembered per plan and dimension."""

LINKED_RULES_MAX = 65_536
"""Rules that a worker keeps linked; beyond it all are forgotten and linked anew."""

PATTERN_DEPTH_MAX = 128
"""Nesting of a validate pattern: the recursive parser and evaluators use up to three
Python frames a level, of 1,000; the deepest field of a Kubernetes object is below
60."""

CONTEXT_NESTING_MAX = 40
"""Context entries that load one another (engine.md 3.7); each level is about ten Python
frames, and the interpreter allows 1,000."""

SEGMENT_BYTES_MAX = 1 << 30
"""One snapshot segment; 10,000 policies take some 30 MB, and the directory is
memory."""

DATA_CACHE_ENTRIES_MAX = 1024
"""Values of one data segment that a worker keeps decoded."""

DATA_CACHE_BYTES_MAX = 16 * 1024 * 1024
"""Encoded size of the values of one data segment that a worker keeps decoded."""

HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers of one HTTP request; the API server sends below 1 KiB, and
Go's own servers allow 1 MiB, which a slow client could make every connection hold."""

SLOW_REVIEWS_WAITING_MAX = 64
"""Reviews with I/O that may wait for a thread in one worker; with more, a caller's
deadline would pass before its turn."""

POLICY_REVIEW_THREADS = 2
"""Policies reviewed at once in one worker: one may wait for the API server while
another is compiled; more would only share the core with reviews of resources."""

POLICY_REVIEWS_MAX = 64
"""Reviews of policies that run or wait in one worker: an API server sends up to 3 MiB
each. With more, a caller's time would pass before its turn."""

ASSERTION_DEPTH_MAX = 128
"""Nesting of one assertion tree; each level takes three Python frames of 1,000, and
trees follow the shape of Kubernetes objects, whose deepest field is below 60."""

CEL_NESTING_MAX = 100
"""Brackets and calls of a CEL expression within one another: the parser uses up to five
Python frames a level, of 1,000; cel-go stops at 250, written by nobody."""

PATCH_PADDING_MAX = 10_000
"""Nulls that one operation of a JSON patch may put before an index that it adds; a
list of an object that etcd can store has fewer elements."""

PATCH_TEXTS_KEPT_MAX = 64
PATCH_TEXT_KEPT_BYTES_MAX = 4096
"""JSON patches that a policy's patch keeps decoded, by their text: a foreach makes one
for each place in a list."""

CEL_VALUE_DEPTH_MAX = 200
"""Nesting of two values that CEL compares; chains of variables can build any depth."""

OUTCOME_MEMO_ENTRIES_MAX = 1024
"""Outcomes of one set of policies whose responses are kept; few recur, and requests
could be made that come to a new one each time."""

KUBE_ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""One answer of the API server: a page of 500 objects of 64 KiB; a page that is larger
is asked for again with half as many objects."""

KUBE_PAGE_OBJECTS = 500
"""Objects per page of a list, as client-go's pager asks for."""

KUBE_EVENT_BYTES_MAX = 16 * 1024 * 1024
"""One line of a watch; etcd stores at most 1.5 MiB an object; JSON may blow it up."""

KUBE_MESSAGE_CHARACTERS_MAX = 512
"""What an error repeats of the API server's or a service's words."""

KUBE_IDLE_CONNECTIONS_MAX = 8
"""Idle connections that one process keeps to the API server."""

KUBE_ATTEMPTS_MAX = 5
"""Attempts of one call that may be repeated, all within its deadline."""

EVENT_NOTE_CHARACTERS_MAX = 1024
"""The note of an Event: a rule of the API server (validation of events.k8s.io)."""

EVENTS_QUEUED_MAX = 1000
"""Events that may wait to be written (maxQueuedEvents); more are dropped, counted."""

JOURNAL_BYTES_MAX = 1024 * 1024
"""What one worker's journal holds, in memory: a thousand reviews of 1 KiB each, which
is one refused by five policies; what does not fit is dropped, counted."""

JOURNAL_RECORD_BYTES_MAX = 32 * 1024
"""One review in a journal, the words of its policies shortened to fit: no single one
may take the place of many."""

SERVICE_ANSWER_BYTES_MAX = 10_000_000
"""Answer of a service that a policy calls (maxAPICallResponseLength)."""

SERVICE_ADDRESSES_MAX = 16
"""Addresses of one service's name that are tried, one after the other."""

WEBHOOK_TIMEOUT_S_MAX = 30
"""timeoutSeconds of a webhook: a rule of the API server."""

FINE_GRAINED_KEPT_MAX = 1024
"""Policies with a webhook path of their own that a worker remembers having known."""

SHARED_ANSWERS_MAX = 1024
"""Namespaces, and users, of one generation whose labels and roles a worker keeps."""

PATCH_COPY_NODES_MAX = 100_000
"""Values that one copy of a JSON patch may hold: each copy of a part into itself
doubles it, and an object that etcd can store has fewer."""

REGISTRY_MANIFEST_BYTES_MAX = 4 * 1024 * 1024
"""One image manifest or index: the most that registries have to take (OCI distribution
specification)."""

REGISTRY_BLOB_BYTES_MAX = 8 * 1024 * 1024
"""One image config or policy layer; etcd stores at most 1.5 MiB of a policy."""

REGISTRY_LAYERS_MAX = 1000
"""Layers of one image that are pulled, each one request; no container has above 127."""

REGISTRY_TOKEN_BYTES_MAX = 256 * 1024
"""Answer of a token service; tokens are sent in headers, which end near 64 KiB."""

GLOBAL_CONTEXT_ENTRIES_MAX = 256
"""GlobalContextEntries that are kept; each has a thread or two of its own."""

GLOBAL_CONTEXT_ENTRY_BYTES_MAX = 16 * 1024 * 1024
"""Data of one GlobalContextEntry: what a worker keeps decoded (DATA_CACHE_BYTES_MAX);
3,000 Deployments of 5 KiB. One with more is an error, and says so."""

GLOBAL_CONTEXT_BYTES_MAX = 64 * 1024 * 1024
"""Data of all GlobalContextEntries together; the largest are left out first."""

LIVE_OBJECTS_BYTES_MAX = 32 * 1024 * 1024
"""Objects that one question of a rule may bring from the API server."""

ACCESS_ANSWERS_MAX = 1024
"""Answers to access reviews that a worker remembers for a short time."""

REGISTRY_REDIRECTS_MAX = 5
"""Redirects of one download: registries send one, to their storage."""

MATCH_CONDITIONS_MAX = 63
"""Match conditions of one webhook: the API server takes 64, and one may be ours."""

BUCKETS_MAX = 100
"""Bucket boundaries of one histogram: each series has a cell for every one, and
dashboards use a dozen."""

BUCKET_TABLES_MAX = 32
"""Different sets of bucket boundaries that one process meets in its life; later ones
take effect when it is started anew."""
