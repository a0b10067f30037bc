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

EXPRESSION_NODES_MAX = 4096
"""Parts of one expression; the largest in public policies have below 500. Each costs
memory in every process that keeps the policy linked."""

POLICY_STEPS_MAX = 2_000_000
"""Elements visited and functions called by all expressions of one policy on one
request: about a second of one core. Policies in use take below 50,000."""

CLUSTER_STEPS_MAX = 6_000_000
"""Steps of all cluster policies on one request, some three seconds: within the API
server's usual 10 s even where three such reviews share a core."""

NS_PER_STEP = 500
HEAVY_STEPS = 10_000
"""What a step stands for, and so many steps charged at once that the clock is asked
before, not after, what they pay for: 5 ms, of a slice of 20."""

TENANT_STEPS_MAX = 2_000_000
"""Steps of all namespaced policies on one request. Whoever may write one in a single
namespace gets no more than that, and takes nothing from what cluster policies have."""

TENANT_TIME_DIVISOR = 2
"""Namespaced policies get this part of the time that was left when the first of them
ran, calls to the outside included; the rest is kept for cluster policies."""

INLINE_SLICE_NS = 20_000_000
"""How long one review may hold a worker's event loop; one that takes longer is judged
in a thread. A review of a Pod takes a hundredth of it, and ten such slices in a row
still leave the others answered within 250 ms."""

INLINE_LINK_BYTES_MAX = 64 * 1024
"""A rule's record that is linked in the event loop: some 10 ms; the largest of public
policies has 12 KiB. Larger ones are linked in a thread."""

THREAD_SLICE_NS = 20_000_000
"""How long an evaluation in a thread goes on before it makes room for other threads."""

LONG_REVIEW_THREADS = 2
"""Threads for reviews that take longer than an event loop has time for: they share one
core anyway, and the second keeps one stubborn review from holding up all others."""

SEMVER_CHARACTERS_MAX = 16 * 1024
"""A version with the range that it is compared with; real ones have some 20, and
blang/semver's way of reading ranges looks at each character several times."""

SORTED_ITEMS_MAX = 50_000
"""Items of a list that an expression sorts: sorting cannot be interrupted, and takes
some 30 ms for so many; an object that etcd can store has fewer."""

DECODED_CHARACTERS_MAX = 1536 * 1024
"""A JSON or YAML text that an expression decodes, which cannot be interrupted; etcd
stores at most 1.5 MiB an object, and what an object holds is less."""

CERTIFICATE_CHARACTERS_MAX = 64 * 1024
"""A PEM text that an expression decodes; chains of certificates have some 10,000."""

TIME_CHARACTERS_MAX = 1024
"""A time, a layout of times or a duration; the longest layouts have some 50."""

DURATION_CHARACTERS_MAX = 128
"""A duration; ``9223372036854775807ns`` has 21 characters, ``1h2m3s`` has 6."""

URL_CHARACTERS_MAX = 16 * 1024
"""A URL or an image that an expression takes apart; servers refuse longer ones."""

PATTERN_PRODUCT_MAX = 1_000_000
"""Weight of a pattern times bytes of the review for which it may run without a charge:
some 15 ms at worst, some 10 us in practice. 17 patterns of weight 20 run so on reviews
up to 50 KB; larger ones are charged value by value, which takes five times as long."""

MESSAGE_CHARACTERS_MAX = 10_000
"""The message of one rule; upstream has no limit, and messages may quote whole objects.
The longest that policies in public write are below 1,000. What is cut off is told."""

VIOLATIONS_MAX = 1000
"""Violations of one assertion tree, each a result of its own with a message; nobody
reads more."""

REFERENCES_PRODUCT_MAX = 1_000_000
"""References ``$(...)`` of one document times its texts: each reference looks at each
text, a second for so many. Public policies have up to ten references."""

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

REVIEW_MESSAGES_CHARACTERS_MAX = 1_000_000
SHORTENED_MESSAGE_CHARACTERS = 200
"""Messages of all rules on one request, and what is left of each further one. They go
into the answer, events and the log; a thousand failures of a usual length take less."""

PARSE_CACHE_ENTRIES_MAX = 4096
"""Memoised parses of expressions and patterns that are known only at run time."""

AUDIT_QUEUE_BYTES_MAX = 160 * 1024 * 1024
"""What the decoded reviews that wait for an audit in one worker may take by estimate:
one of DECODED_BYTES_MAX, or three thousand Pods of 5 KiB. What does not fit is counted
as dropped, like what is over the queue's length."""

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

COMPILE_STEPS_MAX = 500_000
"""Steps of reading and compiling one policy (expr/compile_budget.py), about two seconds
of one core. The costliest public policy takes some 5,000; whoever may create a Policy
in one namespace could keep a leader busy for minutes with the 1.5 MiB that etcd
allows."""

POLICY_REVIEW_STEPS_MAX = 3 * COMPILE_STEPS_MAX
"""Steps of one review of a policy: upstream's checks go over the computed rules, ours
over those as written, then it is compiled as the leader will."""

POLICY_REVIEW_S_MAX = 8.0
"""A review of a policy ends by then: the API server waits ten seconds."""

COMPILE_STEPS_BETWEEN_LOOKS = 1000
"""Steps of compiling between two looks at the clock: about four milliseconds."""

COMPILE_SLICE_S = 0.25
"""In a round with many changed policies, what is compiled is published after so long,
the small ones first; the others follow."""

FIRST_PUBLICATION_S = 20.0
"""A leader that begins compiles all policies before it publishes any, as half of them
would let pass what the others forbid, but not longer than this: a few tenants with
hundreds of costly policies would else keep everybody's from coming into force."""

COMPILED_KEPT_STEPS_MIN = 5_000
"""Policies that took so many steps, 20 milliseconds, are kept compiled for the next
leader of this pod; to compile the others anew costs less than to keep them twice."""

COMPILED_KEPT_BYTES_MAX = 64 * 1024 * 1024
"""What is kept of them: the folder is memory."""

REGEX_CHARACTERS_MAX = 8 * 1024
"""One regular expression: RE2 compiles in one call, which nothing interrupts and
no thread runs beside: up to 0.2 s for so many characters, where classes of Unicode are
repeated, and two seconds for 60,000."""

CEL_TYPE_DEPTH_MAX = 16
"""Lists and maps within one another in the type of a CEL variable; deeper ones are of
any type. Each variable may be a list of the one before it, and types are compared to
their ends."""

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
"""Request line, headers, trailers and what frames chunks of one HTTP request, where
chunks may be framed by as many bytes again as they bring; the API server sends below
1 KiB, and Go's own servers allow 1 MiB, which a slow client could make every
connection hold."""

HEADERS_MAX = 128
"""Headers of one HTTP request, each of which takes some 200 bytes whatever its length;
the API server sends eight, and proxies add a dozen."""

REQUESTS_WAITING_MAX = 128
"""Requests of one connection that wait for the answer to one before them; the API
server sends none before it has its answer."""

CONNECTIONS_MAX = 1024
"""Connections and TLS handshakes of one worker, some 50 KiB each. An API server keeps
25 idle and opens one more for each review beyond; it has at most 600 of them by
default. Beyond, the one that has been silent for longest is closed."""

ARRIVING_BYTES_MAX = 64 * 1024 * 1024
"""What unfinished requests, requests that wait for their turn, and answers that nobody
reads may hold in one worker: six of BODY_BYTES_MAX, or twenty of the 3 MiB that an API
server takes of its own callers. Beyond, the oldest that is unfinished is refused: an
honest request is whole some milliseconds after it began, so the oldest is the one
that somebody holds back, while to refuse the newest would let forty such shut out all
others."""

DECODED_BYTES_MAX = 144 * 1024 * 1024
"""What one decoded review may take, estimated from its bytes before it is decoded. etcd
stores at most 1.5 MiB an object and a review carries it twice: 3 MiB of the densest
nesting are DECODED_TIMES_MAX as much by the estimate, 37 times in truth (110 MiB). A
Pod takes ten times its bytes, so that nothing of BODY_BYTES_MAX is refused that looks
like one."""

DECODED_TIMES_MAX = 48
"""No review takes more times its bytes when it is decoded, by the estimate."""

JUDGING_BYTES_MAX = 160 * 1024 * 1024
"""What decoded reviews that wait for something outside may take in one worker, by the
same estimate: one of DECODED_BYTES_MAX and a thousand usual ones. Those beyond go the
way of their failurePolicy."""

LARGE_BODY_BYTES = 64 * 1024
"""PERF: a body up to here is judged without a look at what it will take; Pods have
below 20 KiB."""

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

SCHEMA_NESTING_MAX = 64
"""Lists of lists and maps of maps in one schema, without a record in between: each
level is one Python frame; Kubernetes' own have two."""

CEL_TYPE_PARTS_MAX = 1000
"""Parts of one type in CEL: each map of maps may have twice as many as its values, so
that thirty variables would make a type nobody finishes reading. Go does not look."""

CEL_TYPE_STEPS_MAX = 500_000
"""Parts of types looked at while one expression is checked: about half a second of one
core, and more than ten thousand calls, for which its text has no room."""

CEL_ERRORS_MAX = 100
CEL_SNIPPET_BYTES_MAX = 16 * 1024
"""Errors told of one expression, and the longest line that is shown with each, as in
cel-go (maxErrorsToReport, maxSnippetLength): one of 64 KiB may have 20,000 errors."""

TYPE_CHECK_TEXT_CHARACTERS_MAX = 64 * 1024
"""What all type warnings of one policy may say; the API server shows 4096 characters
of a webhook's warnings."""

TYPE_CHECK_STEPS_MAX = 500_000
"""Parts of types looked at while one policy is checked against the schemas of its
kinds. What is beyond is not warned of."""

TYPE_CHECK_KINDS_MAX = 10
"""Kinds of one group and version that a policy is checked against, as the API server's
own type checker does (maxTypesToCheck)."""

OPENAPI_BYTES_MAX = 16 * 1024 * 1024
"""One OpenAPI document of the API server: that of the core group has 2 MB, a group of
large custom resources a few more."""

OPENAPI_KEPT_BYTES_MAX = 32 * 1024 * 1024
"""OpenAPI documents that a worker keeps, by their size as text; what is kept of them is
less than that, for descriptions and paths are dropped. The oldest are forgotten."""

OPENAPI_WAIT_S_MAX = 2.0
"""What a review of a policy waits for schemas in all: they are for warnings only, and
the API server gives the whole review ten seconds."""

API_OBJECT_BYTES_MAX = 3 * 1024 * 1024
"""The JSON of an object that an API server takes (MaxRequestBodyBytes): what is larger
could be written by nobody, whatever a webhook makes of it."""

PATCH_TEXT_BYTES_MAX = API_OBJECT_BYTES_MAX
"""The text of one JSON patch of a policy."""

PATCH_ANSWER_BYTES_MAX = 2 * API_OBJECT_BYTES_MAX
"""The JSON patch that a review is answered with: all of an object that the API server
would still take, and as much again for the paths."""

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

RECALL_ENTRIES_MAX = 1024
RECALL_KEY_BYTES_MAX = 4096
RECALL_SAID_CHARACTERS_MAX = 4096
"""Verdicts on equal objects that a worker keeps, and the sizes of one: 20 MiB at most
(texts may take 4 bytes a character), and 1 MiB where keys are those of usual Pods. Who
fills it empties it; keys are hashed with a secret."""

RECALL_REVIEW_BYTES_MAX = 64 * 1024
"""Larger reviews are judged each time: Pods are smaller, and nobody can make a worker
write megabytes of JSON only to find that it never saw them."""

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
