"""Define every limit of the program, each with its reason.

Room: limits (below every other). Each name ends with its unit. A limit that operators
can change has a setting in ``settings`` whose default is the value here.

Over 400 lines: one table of the limits with their reasons.
"""

BODY_BYTES_MAX = 10 * 1024 * 1024
"""Size of an AdmissionReview. etcd stores at most 1.5 MiB per object, and a review
carries the object twice plus managed fields. controller-runtime allows 7 MiB; this
limit leaves some room."""

JSON_DEPTH_MAX = 512
"""Nesting depth of a review or a policy. Kubernetes objects stay below 60 levels; a
recursive walk over a few thousand levels would exhaust the C stack."""

METRICS_LINES_MAX = 1_000_000
"""Lines of all recorded metric families. 50 policies whose rules matched Pods and
Deployments in each of 500 namespaces expose fewer (tests/unit/telemetry/test_bound.py
counts them); Prometheus reads this many in some seconds."""

CALLER_TARGETS_KEPT_MAX = 1024
CALLER_TARGET_BYTES_MAX = 512
"""Targets of requests that proved their caller, which a worker keeps split: half a MiB.
Only policies with their own webhooks need more than a dozen."""

CALLER_PATH_ROTATE_S_MIN = 120
"""Age of a secret path segment from which a failed call replaces it. A tenant can
cancel requests at will, and each replacement writes all webhook configurations."""

DEEP_CONTAINERS_MAX = 100_000
"""Maps and lists in a review that is nested deeper than 254 levels: counting their
levels takes 30 ms, and no Kubernetes object is nested so deeply."""

EXPRESSION_TEXT_BYTES_MAX = 64 * 1024
"""Size of one JMESPath or template text; the longest in public policies is below 4
KiB."""

EXPRESSION_DEPTH_MAX = 200
"""Depth of the syntax tree of one expression; protects the recursive linker."""

EXPRESSION_NODES_MAX = 4096
"""Nodes of one expression; the largest in public policies have fewer than 500. Each
node costs memory in every process that keeps the policy linked."""

POLICY_STEPS_MAX = 2_000_000
"""Elements visited and functions called by all expressions of one policy on one
request: about one second of one core. Policies in use need fewer than 50,000."""

CLUSTER_STEPS_MAX = 6_000_000
"""Steps of all cluster policies on one request, about three seconds: within the API
server's usual 10 s even if three such reviews share a core."""

NS_PER_STEP = 500
HEAVY_STEPS = 10_000
"""The time that one step represents, and the number of steps from which a single charge
checks the clock before the work instead of after it: 5 ms of a 20 ms slice."""

EXCEPTION_STEPS_MAX = 1_000_000
"""Steps of all PolicyExceptions in CEL on one request, about half a second. They are
not charged to the policies, which must not deny because of exceptions."""

TENANT_STEPS_MAX = 2_000_000
"""Steps of all namespaced policies on one request. A user who can create policies in
one namespace cannot use more than this, and cannot use the steps of cluster policies.
"""

TENANT_TIME_DIVISOR = 2
"""Namespaced policies get the remaining time divided by this number, measured when the
first of them starts and including external calls; the rest is reserved for cluster
policies."""

INLINE_SLICE_NS = 20_000_000
"""How long one review can block a worker's event loop; a longer one is evaluated in a
thread. A review of a Pod takes a hundredth of this, and even after ten such slices in a
row the other reviews are answered within 250 ms."""

INLINE_CROWDED_SLICE_NS = 2_500_000
INLINE_CROWDED_NS = 100_000_000
"""The reduced slice, and how long it applies after a review exceeded its own slice.
Long reviews arrive together, and sixteen full slices in a row would take 320 ms. A
review of a Pod takes a tenth of the reduced slice."""

INLINE_STARVED_SLICE_NS = 1_000_000
INLINE_STARVED_NS_MAX = 100_000_000
"""CPU time of the thread for which a review can continue after its slice, and how long
that can take on a busy machine. A review of a Pod takes a fifth of it, and a long one
blocks the event loop only this much longer."""

INLINE_REST_SLICE_NS = 5_000_000
"""How long the event loop evaluates a review that no thread finished by its deadline.
All waiting reviews (SLOW_REVIEWS_WAITING_MAX) can reach it together, one per round of
the event loop. They take 320 ms, and the API server waits for another 500 ms."""

INLINE_LINK_BYTES_MAX = 8 * 1024
"""Size of a rule record that is linked on the event loop: 1 to 25 ms, the longest for
wildcards and assertion trees. Larger ones are linked in a thread, once. The largest in
public policies has 12 KiB."""

THREAD_SLICE_NS = 2_000_000
THREAD_PAUSE_NS = 50_000
"""How long an evaluation in a thread runs before it yields to other threads, and how
long it sleeps at least. Python takes a core from a thread that runs Python code, but
hardly from one that calls RE2, TLS or a hash again and again: each call gives the
interpreter back and takes it before a waiting thread wakes up. Without the pause, one
such evaluation delayed the event loop by seconds. Pauses take a twentieth of its time.
"""

LONG_REVIEW_THREADS = 2
"""Threads for reviews that are too long for the event loop. They share one core anyway;
the second thread prevents one slow review from blocking all others."""

SEMVER_CHARACTERS_MAX = 16 * 1024
"""A version together with its range. Real ones have about 20 characters, and the range
parser of blang/semver reads each character several times."""

SORTED_ITEMS_MAX = 50_000
"""Items of a list that an expression sorts. Sorting cannot be interrupted and takes
about 30 ms for this many; an object that etcd can store has fewer."""

DECODED_CHARACTERS_MAX = 1536 * 1024
"""A JSON or YAML text that an expression decodes, which cannot be interrupted. etcd
stores at most 1.5 MiB per object, so a string inside an object is shorter."""

CERTIFICATE_CHARACTERS_MAX = 64 * 1024
"""A PEM text that an expression decodes; certificate chains have about 10,000
characters."""

TIME_CHARACTERS_MAX = 1024
"""A time, a time layout or a duration; the longest layouts have about 50 characters."""

DURATION_CHARACTERS_MAX = 128
"""A duration; ``9223372036854775807ns`` has 21 characters, ``1h2m3s`` has 6."""

URL_CHARACTERS_MAX = 16 * 1024
"""A URL or an image reference that an expression parses; servers reject longer ones."""

PATTERN_PRODUCT_MAX = 1_000_000
"""Weight of a pattern times bytes of the review. Up to this product, the pattern runs
without charging steps: about 15 ms at worst, about 10 us in practice. 17 patterns of
weight 20 stay below it for reviews up to 50 KB. Larger ones are charged value by value,
which takes five times as long."""

MESSAGE_CHARACTERS_MAX = 10_000
"""The message of one rule. Upstream has no limit, and messages can quote whole objects.
The longest in public policies are below 1,000. A truncated message is marked as such.
"""

VIOLATIONS_MAX = 1000
"""Violations of one assertion tree. Each is a separate result with its own message, and
users do not read more."""

REFERENCES_PRODUCT_MAX = 1_000_000
"""``$(...)`` references of one document times its strings. Each reference searches each
text, which takes a second at this limit. Public policies have up to ten references."""

STEPS_BETWEEN_CLOCK_CHECKS = 256
"""Steps between two checks of the clock: about a tenth of a millisecond, while
deadlines are seconds."""

EXPRESSION_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of text that the expressions of one rule can build on one request."""

CONTEXT_BYTES_MAX = 2 * 1024 * 1024
"""Kyverno's maxContextSize: total size of all context entries (engine 1.8)."""

CONTEXT_BYTES_HIGHEST = 1 << 30
"""The highest value of maxContextSize, and the value for "no limit": a worker that uses
more would be killed for exceeding its memory limit."""

SUBSTITUTION_ROUNDS_MAX = 64
"""Re-scans of one string for variables (engine 3.1 step 9); a value that contains
its own variable would otherwise be expanded forever."""

REVIEW_MESSAGES_CHARACTERS_MAX = 1_000_000
SHORTENED_MESSAGE_CHARACTERS = 200
"""Length of the messages of all rules on one request, and the length to which each
further one is cut. Messages are sent in the response, events and the log; a thousand
failures of the usual length take less."""

PARSE_CACHE_ENTRIES_MAX = 4096
"""Cached parse results of expressions and patterns that are known only at run time."""

AUDIT_QUEUE_BYTES_MAX = 160 * 1024 * 1024
"""Estimated memory of the decoded reviews that wait for an audit in one worker: three
thousand Pods of 5 KiB. Each of its two queues has half of it, and an empty queue
accepts one review of DECODED_BYTES_MAX. A review that does not fit is counted as
dropped, like one that exceeds the queue's length."""

REQUEST_TIMEOUT_S_MAX = 30.0
"""The API server never waits longer for a webhook."""

SUBSTITUTION_DEPTH_MAX = 256
"""Nesting depth of a document with variables, including the data that its variables
return. Each level is one Python frame of a recursive walk; the interpreter allows
1,000."""

KIND_MEMO_ENTRIES_MAX = 1024
"""Kinds cached per list of kind selectors; a large cluster serves a few hundred."""

POLICY_FILE_BYTES_MAX = 64 * 1024 * 1024
"""One policy file; all 400 sample policies of Kyverno together are below 2 MiB."""

POLICY_FILE_NODES_MAX = 2_000_000
"""Nodes of one file after expanding every alias, about ten seconds of one core; 10,000
policies have half as many."""

COMPILE_STEPS_MAX = 500_000
"""Steps for parsing and compiling one policy (expr/compile_budget.py), about two
seconds of one core. The most expensive public policy takes about 5,000. Without the
limit, a user who can create a Policy in one namespace could keep a leader busy for
minutes with the 1.5 MiB that etcd allows."""

COMPILE_EXCEPTION_STEPS_MAX = COMPILE_STEPS_MAX // 10
"""Steps to compile one PolicyException for one policy or rule: a fifth of a second, for
2,000 comparisons in CEL. An exception that takes more is rejected, and exempts nothing.
"""

COMPILE_EXCEPTIONS_STEPS_MAX = COMPILE_STEPS_MAX
"""Steps of all exceptions from one policy, separate from the policy's own. Otherwise, a
user who can create exceptions in one namespace could cause the rejection of a cluster
policy. Exceptions beyond the limit exempt nothing."""

POLICY_REVIEW_STEPS_MAX = 3 * COMPILE_STEPS_MAX
"""Steps of one policy review: upstream's checks read the computed rules, our checks
read the original rules, and then the policy is compiled as in the leader."""

POLICY_REVIEW_S_MAX = 8.0
"""The time limit of a policy review: the API server waits ten seconds."""

COMPILE_STEPS_BETWEEN_CLOCK_CHECKS = 1000
"""Compile steps between two checks of the clock: about four milliseconds."""

COMPILE_SLICE_S = 0.25
"""If many policies changed, the leader first publishes those compiled within this time,
starting with the small ones, or within the time that the rest of a round takes if that
is longer. The other policies follow."""

COMPILE_FIRST_SLICE_S = 2.0
"""The same before the first publication: each round costs a pass over all policies.
SIGHUP is obeyed at its end."""

FIRST_PUBLICATION_S = 20.0
"""A new leader compiles all policies before it publishes any, because a partial set
would allow what the missing policies forbid. After this time it waits only for those of
the cluster, because a few tenants with hundreds of expensive policies could otherwise
delay all other policies."""

COMPILED_KEPT_STEPS_MIN = 5_000
"""Policies that took at least this many steps, 20 milliseconds, are kept compiled for
the next leader of this pod. Compiling cheaper ones again costs less than storing them
twice."""

COMPILED_KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Total size of the stored compiled policies, because the directory is in memory."""

COMPILE_HELPERS_MAX = 4
"""Processes that compile the first policies of a leader: more share less."""

COMPILE_HELPERS_FILES_MIN = 200
"""Below, about a third of a second, processes save no time."""

COMPILE_HELPERS_BATCH_FILES = 100
"""Files that a helper compiles at once: few enough that all helpers end together."""

COMPILE_HELPERS_BATCH_BYTES = 1024 * 1024
"""The same for large files."""

COMPILE_HELPERS_BYTES_MAX = 64 * 1024 * 1024
"""Compiled policies that helpers send, and the largest message: the leader compiles the
others itself, one by one."""

COMPILE_HELPERS_S = 10.0
"""The leader waits for its helpers this long since their last answer, half of
FIRST_PUBLICATION_S; on a busy machine, a batch takes seconds. FIRST_PUBLICATION_S ends
all waits: after it, costly policies of tenants must not delay those of the cluster."""

PARSED_KEPT_CHARACTERS_MAX = 200
"""Only short expressions recur in many policies; they are parsed once and kept. A long
one may take few steps, so their number alone is no bound."""

PARSED_KEPT_MAX = 1_000
"""Parsed expressions that the leader keeps: at most some ten megabytes. Then it starts
over, because the policies of one author could otherwise displace all others'."""

REGEX_CHARACTERS_MAX = 8 * 1024
"""One regular expression: RE2 compiles it in one call, during which no other thread
runs. The longest in public policies have a few hundred characters."""

REGEX_CLASSES_MAX = 32
REGEX_OPTIONAL_MAX = 2_000
REGEX_REPEATS_MAX = 20_000
REGEX_PROGRAM_BYTES_MAX = 2 * 1024 * 1024
"""Limits of one regular expression. Unicode classes take up to 0.5 ms each. Optional
parts (``?``, ``*``, ``{n,m}``) are counted with all copies from the repetitions around
them, because sequences of them take time quadratic in their length (2,700 of them in a
group that is repeated 20 times take three seconds). Copies from repetitions count twice
for a class with a range beyond ASCII. RE2's memory for the compiled form is limited,
too. Each limit stands for at most some 50 ms. Public policies have only a few of each.
"""

CEL_TYPE_DEPTH_MAX = 16
"""Nesting depth of lists and maps in the type of a CEL variable; deeper levels get the
type dyn. Each variable can be a list of the previous one, and comparing types walks all
levels."""

WATCHED_FILE_BYTES_MAX = 16 * 1024 * 1024
"""Size of one file in a watched directory: while the leader reads it, no other policy
is updated."""

POLICY_RULES_MAX = 1000
"""Rules of one policy before autogen: about a second of the leader's time. etcd's limit
of 1.5 MiB per object allows about 10,000; public policies have up to 30."""

STATUS_TEXT_LENGTH_MAX = 2000
"""One text in the status of a policy; error messages can quote whole expressions."""

INDEX_KEYS_PER_FILTER_MAX = 4096
"""Index keys of one match filter (kinds x operations x values). A filter with more keys
is indexed by a coarser criterion, so that no policy can inflate the snapshot."""

CANDIDATE_PLANS_MAX = 2048
"""Pairs of kind and operation whose plan a worker caches."""

OUTCOMES_OF_A_GROUP_MAX = 64
"""Combinations of passes and skips of policies in CEL that a worker caches for one kind
of request; most policy sets have a handful."""

OUTCOMES_WITH_MESSAGES_MAX = 256
"""Outcomes of policies in CEL, with messages, that a worker caches: at most 4 MiB,
because an outcome with more than RECALL_MESSAGES_CHARACTERS_MAX is not cached."""

ORIGINS_MAX = 16
"""Possible sources of one value when the reads of an expression are tracked; a list of
all containers of a Pod has three. Each step takes at most this many units."""

READS_TEXT_CHARACTERS_MAX = 16 * 1024
"""CEL texts of one rule or policy whose reads are tracked, on the event loop: some
milliseconds. Verdicts of longer ones are not cached; samples have less than 2 KiB."""

READS_DEPTH_MAX = 100
READS_PLACES_MAX = 5_000
"""Nesting depth of the fields that rules read, at up to two Python frames each, and the
number of fields of all rules whose verdicts are cached together: some ten milliseconds.
A chain of variables can be thousands of levels deep. The deepest field of a Kubernetes
object is below 60, and the Pod Security policies read 200 fields."""

CANDIDATE_MEMO_ENTRIES_MAX = 1024
"""Values (namespaces, names, users) cached per plan and dimension."""

LINKED_RULES_MAX = 65_536
"""Rules that a worker keeps linked; beyond this number the cache is cleared and rules
are linked again on use."""

LINKED_AHEAD_REFERENCES_MIN = 32
"""A worker links the rules of an index key with this many rules or more before it
serves them; the first review links fewer within 50 ms. Rules for other kinds or
namespaces stay unlinked until a review needs them."""

LINKED_AHEAD_BYTES_MAX = 16 * 1024 * 1024
LINKED_AHEAD_NS_MAX = 2_000_000_000
"""Records that a worker links before it serves a generation, about ten times what 1,000
policies take, and the time for it, after which the generation comes into force anyway:
a worker that is 5 s behind makes the pod unready. It links for as long again
afterwards; reviews link the rest."""

LINKED_AHEAD_ALONE_NS_MAX = 1_000_000_000
"""How long a starting worker links before it accepts connections while no other worker
does; it then goes on while it serves. Clients wait for a single worker."""

LINKED_AHEAD_SLICE_NS = 2_000_000
LINKED_AHEAD_PAUSE_NS = 1_000_000
"""How long a worker links ahead before it leaves the core to reviews, and for how long:
a review waits for a few such slices."""

LINKED_POLICY_BYTES_MAX = 32 * 1024 * 1024
LINKED_NAMESPACE_BYTES_MAX = 128 * 1024 * 1024
"""Estimated memory (compiler/linked_size.py) of one namespaced policy, and of all
policies of a namespace, in every process that links them. A document of 1.5 MiB can
take 180 MiB and seconds to link, and a tenant can create many."""

UNLINKED_NAMESPACE_BYTES_MAX = 32 * 1024 * 1024
"""Estimated memory of the stubs of a namespace's policies that are not linked. A stub
of one rule takes 12 KiB, and a tenant can create tens of thousands of policies. Beyond
this limit, one policy that fails for every object of the namespace replaces them."""

LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX = 16 * 1024 * 1024
LINKED_EXCEPTIONS_BYTES_MAX = 64 * 1024 * 1024
"""Estimated memory of the PolicyExceptions of one namespace: of those that name one
policy, and of all. Each rule that an exception names has a copy; one that matches by
namespace and name takes about 8 KiB. Exceptions over a budget exempt nothing. The
background pool and DeletingPolicies apply only the first budget."""

RELINKING_PAUSE_NS = 1_000_000_000
RELINKING_PAUSE_NS_MAX = 60_000_000_000
"""The first and the longest pause between two attempts of a worker to link a policy or
a rule whose linking ended in an internal error. Most such errors do not recur."""

RELINKING_SHARE = 32
"""A pause is this many times as long as the attempt: linking takes up to seconds, in a
thread, and a policy that never links takes 3 % of a core."""

UNLINKED_POLICY_BYTES_MAX = 256 * 1024
"""Estimated memory of a policy that is not linked. Its rules still match, and each
match is an error. If its match blocks exceed the limit, the policy is an error for
every kind."""

NEW_OBJECTS_MAX = 5_000_000
"""Objects tracked by the garbage collector that a webhook worker creates and does not
free before Python collects on its own. All decoded reviews (EVALUATING_BYTES_MAX) have
fewer, so the excess is garbage, and freeing the memory is worth the two seconds that a
collection takes."""

COLLECTED_OBJECTS_MAX = 100_000
"""Objects that one garbage collection of a worker can visit: up to 85 ms, while the
event loop waits. If there are more, linked rules are frozen. Other objects are left
alone for as long as a review can take (REQUEST_TIMEOUT_S_MAX); after that, they are
garbage."""

COLLECTED_HELD_BYTES_MAX = 16 * 1024 * 1024
"""Decoded size of the reviews that a worker can hold, in evaluation or for an audit,
while it collects: some hundred thousand objects, each larger than 100 bytes."""

COLLECTED_NEW_OBJECTS_MIN = 50_000
"""New objects after which a worker collects. PERF: a review creates some 200 containers
that reference counting frees; with Python's default of 700 every third review would
start a collection that frees nothing."""

COLLECTED_FREED_BYTES_MIN = 256 * 1024 * 1024
"""Bytes of reviews after which COLLECTED_LEFT_OBJECTS_MIN new objects suffice for a
collection. A reference cycle of 50 objects can hold a review of 1 MiB, and
COLLECTED_NEW_OBJECTS_MIN objects are 1,000 such cycles. PERF: at 50 MiB/s, one
collection of about 10 ms in 5 s."""

COLLECTED_LEFT_OBJECTS_MIN = 1_000
"""New objects for a collection after COLLECTED_FREED_BYTES_MIN; a worker keeps about
this many between collections anyway."""

PATTERN_DEPTH_MAX = 128
"""Nesting depth of a validate pattern. The recursive parser and evaluators use up to
three of 1,000 Python frames per level; the deepest field of a Kubernetes object is
below 60."""

CONTEXT_NESTING_MAX = 40
"""Depth of context entries that load one another (engine 3.7); each level takes
about ten Python frames, and the interpreter allows 1,000."""

SEGMENT_BYTES_MAX = 1 << 30
"""One snapshot segment; 10,000 policies take about 30 MB, and the directory is in
memory."""

ROOM_KEPT_BYTES_MAX = 4 * 1024 * 1024
ROOM_KEPT_DIVISOR = 16
"""Bytes of the runtime folder that segments, cached images and metric series leave free
for the files of status and health, and the part of a smaller folder. A status of 10,000
policies has about 4 MiB, all other files together less than 1 MiB."""

TENANT_TEXT_BYTES_MAX = 64 * 1024
"""One string of a namespaced policy's messages and patterns. The longest in public
policies have some KiB, and messages are cut at MESSAGE_CHARACTERS_MAX anyway."""

PUBLISHED_SHARE_DIVISOR = 4
"""The part of the runtime folder that all compiled policies together can take. While a
publication replaces another, the folder and the workers have up to three of them."""

TENANTS_PUBLISHED_DIVISOR = 8
"""The part of PUBLISHED_SHARE_DIVISOR's that namespaced policies have however much the
administrators' policies take."""

TENANTS_MEMORY_DIVISOR = 4
"""The part of the pod's memory for the linked namespaced policies of all processes
together. The estimate is about twice the real size."""

POLICIES_MEMORY_DIVISOR = 4
"""The part of the pod's memory that counts as its runtime folder, which may be on a
disk, or in memory without a limit of its own."""

COMPILED_KEPT_DIVISOR = 16
"""The part of the runtime folder for stored compiled policies, which a writer has
twice."""

SOURCES_MEMORY_DIVISOR = 16
"""The part of the pod's memory for the documents of policies and exceptions: 48 MiB in
``deploy/``, 15,000 documents of 3 KiB. The leader has each about five times: its text,
its compiled form (larger, with autogen rules), and both again while they change."""

TENANTS_SOURCES_DIVISOR = 2
"""The part of SOURCES_MEMORY_DIVISOR's that namespaced documents have however much the
administrators' documents take."""

OUTLINE_BYTES_MAX = 4 * 1024
"""What stays of a document without room: its names, kinds and matches, which take less
than 1 KiB in public policies."""

SOURCES_READ_AGAIN_S = 60.0
"""Pause between two lists that read documents for which there is room again, because
each list reads all documents."""

UNLINKED_SHARE_DIVISOR = 4
"""The part of a namespace's share for the stubs of its policies without a share."""

PUBLISH_RETRY_S = 5.0
"""Pause before a publication that found no room is tried again: encoding 10,000
policies takes a second."""

DATA_CACHE_ENTRIES_MAX = 1024
"""Number of values of one data segment that a worker keeps decoded."""

DATA_CACHE_BYTES_MAX = 16 * 1024 * 1024
"""Encoded size of the values of one data segment that a worker keeps decoded."""

HEAD_BYTES_MAX = 64 * 1024
"""Request line, headers, trailers and chunk framing of one HTTP request; the framing of
chunks can additionally take as many bytes as their data. The API server sends less than
1 KiB. Go's own servers allow 1 MiB, which a slow client could make every connection
hold."""

HEADERS_MAX = 128
"""Headers of one HTTP request. Each takes about 200 bytes regardless of its length; the
API server sends eight, and proxies add a dozen."""

REQUESTS_WAITING_MAX = 128
"""Pipelined requests of one connection that wait for an earlier response; the API
server does not pipeline."""

CONNECTIONS_MAX = 1024
"""Connections and TLS handshakes of one worker, about 50 KiB each. An API server keeps
25 idle connections and opens another for each further concurrent review, at most 600 by
default. Beyond the limit, the connection that has been idle longest is closed."""

ARRIVING_BYTES_MAX = 64 * 1024 * 1024
"""Memory of one worker for incomplete requests, queued requests, and responses that
clients do not read: six of BODY_BYTES_MAX, or twenty of the 3 MiB that an API server
accepts from its own clients. Beyond the limit, the oldest incomplete request is
rejected. A normal request is complete a few milliseconds after it starts, so the oldest
one is probably held back on purpose. If the newest were rejected, forty such requests
could block all others."""

DECODED_BYTES_MAX = 144 * 1024 * 1024
"""Memory of one decoded review, estimated from its bytes before decoding. etcd stores
at most 1.5 MiB per object and a review carries it twice. For 3 MiB of the densest
nesting the estimate is DECODED_TIMES_MAX times the size; the measured factor is 37 (110
MiB). A Pod takes ten times its bytes, so a Pod-like review of BODY_BYTES_MAX is never
rejected."""

DECODED_KEYS_MAX = 500_000
"""Keys of a review above 3 MiB: decoding so many different keys takes 140 ms, during
which no other review is answered. An object that etcd can store has at most 200,000
different keys, and a review carries it twice. Colons in strings do not count: a string
of addresses has one for every three characters."""

DECODED_TIMES_MAX = 48
"""The highest estimated ratio between the decoded and the encoded size of a review."""

EVALUATING_BYTES_MAX = 160 * 1024 * 1024
"""Estimated memory of the decoded reviews in one worker that wait for external calls:
one review of DECODED_BYTES_MAX and a thousand typical ones. Further reviews fail, and
their failurePolicy decides."""

LARGE_BODY_BYTES = 64 * 1024
"""PERF: a body up to this size is evaluated without estimating its decoded size; Pods
have less than 20 KiB."""

SLOW_REVIEWS_WAITING_MAX = 64
"""Reviews with I/O that can wait for a thread in one worker; with more, requests would
reach their deadline while they wait."""

POLICY_REVIEW_THREADS = 3
"""Policies reviewed concurrently in one worker: one can wait for the API server while
another is compiled. More would only compete with resource reviews for the core. One of
the threads is reserved for cluster policies, so that no tenant delays an administrator.
"""

POLICY_REVIEWS_MAX = 64
"""Policy reviews that run or wait in one worker; an API server sends up to 3 MiB each.
With more, requests would reach their deadline while they wait."""

NAMESPACED_POLICY_REVIEWS_MAX = 48
"""Reviews of namespaced policies that run or wait in one worker; the remaining places
are for cluster policies."""

POLICY_REVIEWS_OF_NAMESPACE_MAX = 12
"""Policy reviews of one namespace that run or wait in one worker; one runs at a time.
"""

ASSERTION_DEPTH_MAX = 128
"""Nesting depth of one assertion tree. Each level takes three of 1,000 Python frames;
trees follow the shape of Kubernetes objects, whose deepest field is below 60."""

TEMPLATE_DEPTH_MAX = 64
"""Nesting depth of a document in the template of a GeneratingPolicy, with its scalars.
The recursive compiler uses three of 1,000 Python frames per level and must not depend
on the stack of its thread; the deepest field of a Kubernetes object is below 60."""

CEL_NESTING_MAX = 100
"""Nesting depth of brackets and calls in a CEL expression. The parser uses up to five
of 1,000 Python frames per level; cel-go allows 250, which no real expression
reaches."""

SCHEMA_NESTING_MAX = 64
"""Directly nested lists and maps in one schema, without a record in between. Each level
is one Python frame; schemas of Kubernetes have two levels."""

CEL_TYPE_PARTS_MAX = 1000
"""Parts of one type in CEL. Each map of maps can have twice the parts of its values, so
thirty variables could build a type that takes practically forever to process. Go has no
such limit."""

CEL_TYPE_STEPS_MAX = 500_000
"""Parts of types visited while one expression is checked: about half a second of one
core. This is enough for ten thousand calls, more than fit into the expression's
text."""

CEL_ERRORS_MAX = 100
CEL_SNIPPET_BYTES_MAX = 16 * 1024
"""Errors reported for one expression, and the longest source line shown with each, as
in cel-go (maxErrorsToReport, maxSnippetLength). An expression of 64 KiB can have 20,000
errors."""

CEL_REPEATED_MAX = 1_000
"""Errors, and items of literal lists, that are recorded again because cel-go expands
the target of optMap and optFlatMap twice: a chain of 26 calls would repeat them 67
million times. Only CEL_ERRORS_MAX errors are shown, so beyond this limit only the count
of the remaining errors differs."""

TYPE_CHECK_TEXT_CHARACTERS_MAX = 64 * 1024
"""Total length of all type warnings of one policy; the API server shows 4096 characters
of a webhook's warnings."""

TYPE_CHECK_STEPS_MAX = 500_000
"""Parts of types visited while one policy is checked against the schemas of its kinds.
Beyond the limit there are no further warnings."""

TYPE_CHECK_KINDS_MAX = 10
"""Kinds of one group and version that a policy is checked against, as the API server's
own type checker does (maxTypesToCheck)."""

OPENAPI_BYTES_MAX = 16 * 1024 * 1024
"""One OpenAPI document of the API server: the document of the core group has 2 MB, and
the document of a group with large custom resources a few MB more."""

OPENAPI_KEPT_BYTES_MAX = 32 * 1024 * 1024
"""OpenAPI documents that a worker caches, measured by their encoded size; the cached
form is smaller because descriptions and paths are dropped. The oldest are evicted."""

TYPES_KEPT_MAX = 256
"""Custom kinds whose types a process keeps for apply configurations: more than
MutatingPolicies use in practice. The oldest are evicted and read again."""

DISCOVERY_WAIT_S_MAX = 5.0
"""How long a thread waits until another one has listed the kinds of the API server,
which takes milliseconds. Afterwards, kinds that the list does not have are unknown."""

OPENAPI_WAIT_S_MAX = 2.0
"""Total time that a policy review waits for schemas. They are used only for warnings,
and the API server allows ten seconds for the whole review."""

API_OBJECT_BYTES_MAX = 3 * 1024 * 1024
"""The JSON of an object that an API server accepts (MaxRequestBodyBytes). A larger
object from a webhook could not be stored."""

PATCH_TEXT_BYTES_MAX = API_OBJECT_BYTES_MAX
"""The text of one JSON patch in a policy."""

PATCH_ANSWER_BYTES_MAX = 2 * API_OBJECT_BYTES_MAX
"""The JSON patch in a response: the largest object that the API server accepts, and the
same size again for the paths."""

PATCH_PADDING_MAX = 10_000
"""Nulls that one operation of a JSON patch can insert before the index that it adds; a
list in an object that etcd can store has fewer elements."""

PATCH_TEXTS_KEPT_MAX = 64
PATCH_TEXT_KEPT_BYTES_MAX = 4096
"""Decoded JSON patches cached per patch of a policy, keyed by their text: a foreach
produces one for each position in a list."""

CEL_VALUE_DEPTH_MAX = 200
"""Nesting depth of two values that CEL compares; chains of variables can build any
depth."""

OUTCOME_MEMO_ENTRIES_MAX = 1024
"""Outcomes of one set of policies whose responses are cached. Only a few occur in
practice, but a client could craft requests that each produce a new one."""

OUTCOME_MEMO_RESPONSES_MAX = 16_384
"""Responses of policies in the cached outcomes of one set, about 300 bytes each with
what is derived from them: 80 outcomes of 200 policies."""

BATCH_MEMO_RULES_MAX = 65_536
"""Rules in the cached batches of one set of policies, about 200 bytes each. There is a
batch for each namespace in which the actions of rules differ."""

METRIC_LABELS_CACHED_MAX = 32_768
"""Rules whose metric labels a worker caches by outcome and namespace, at most 300 bytes
each."""

RECALL_ENTRIES_MAX = 1024
RECALL_KEY_BYTES_MAX = 4096
RECALL_MESSAGES_CHARACTERS_MAX = 4096
"""Verdicts on equal objects that a worker caches, and the sizes of one entry: at most
20 MiB (strings can take 4 bytes per character), and 1 MiB with the keys of typical
Pods. A full cache is cleared; keys are hashed with a secret."""

RECALL_MUTATIONS_MAX = 256
RECALL_PATCH_BYTES_MAX = 4096
RECALL_MUTATION_STEPS_MAX = 10_000
"""Limits for cached patches on equal objects: their number, the size of one (about 30
KiB decoded with its key), and the steps of the extra run of the rules before a patch is
cached: 5 ms of a 20 ms slice. A full cache is cleared."""

RECALL_READS_STEPS_MAX = 20_000
"""Steps in which a worker computes which fields the mutate rules of a plan read: 5 ms,
2000 keys or 200 variables. It does so on the event loop, at the first review of a kind.
Patches of larger plans are not cached, because the extra run would take as long."""

RECALL_REVIEW_BYTES_MAX = 64 * 1024
"""Larger reviews are always evaluated: Pods are smaller, and no client can make a
worker encode megabytes of JSON only for a cache miss."""

KUBE_ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""One response of the API server: a page of 500 objects of 64 KiB. A larger page is
requested again with half as many objects."""

KUBE_PAGE_OBJECTS = 500
"""Objects per page of a list, as in client-go's pager."""

KUBE_EVENT_BYTES_MAX = 16 * 1024 * 1024
"""One line of a watch; etcd stores at most 1.5 MiB per object, and its JSON can be
larger."""

KUBE_MESSAGE_CHARACTERS_MAX = 512
"""The part of a message from the API server or a service that an error quotes."""

KUBE_IDLE_CONNECTIONS_MAX = 8
"""Idle connections that one process keeps to the API server."""

KUBE_ATTEMPTS_MAX = 5
"""Attempts of one idempotent call, all within its deadline."""

EVENT_NOTE_CHARACTERS_MAX = 1024
"""The note of an Event: a limit of the API server (validation of events.k8s.io)."""

EVENTS_QUEUED_MAX = 1000
"""Events that can wait to be written (maxQueuedEvents); more are dropped and counted.
"""

JOURNAL_BYTES_MAX = 1024 * 1024
"""Size of one worker's journal in memory: a thousand reviews of 1 KiB each, the size of
a review denied by five policies. A review that does not fit is dropped and counted."""

JOURNAL_RECORD_BYTES_MAX = 32 * 1024
"""One review in a journal; the messages of its policies are shortened to fit, so that a
single review cannot displace many others."""

TRIGGER_JOURNAL_BYTES_MAX = 4 * 1024 * 1024
"""Size of one worker's journal of triggers: 4,000 reviews of 1 KiB each, or two of
maximum size. The policies of a review that does not fit are synced again."""

TRIGGER_RECORD_BYTES_MAX = 2 * 1024 * 1024
"""One review in a journal of triggers: the largest object that etcd stores, 1.5 MiB,
and the rest of the review."""

TRIGGERS_WAITING_MAX = 100_000
"""Reviews that can wait in one worker's journal of triggers; the limit in bytes is
reached first."""

TRIGGER_OBJECTS_BYTES_MAX = 1_400_000
"""Objects in an UpdateRequest: etcd stores 1.5 MiB, and rejects more with an error that
looks like an outage. The policy of a larger trigger is synced again."""

LOST_JOURNAL_BYTES_MAX = 256 * 1024
"""Size of one worker's journal of policies whose triggers could not be recorded: one
record of 150 bytes per policy until the leader processes it, so 1,700 policies."""

TRIGGER_WRITERS = 4
"""UpdateRequests that the leader writes concurrently: at 5 ms per call, 800 per second.
"""

TRIGGERS_AT_ONCE_MAX = 256
"""Records of one journal that the leader writes at once."""

TRIGGER_REJECTED_S = 60
"""Time after which a rejected record of a trigger can be given up: a webhook's removal
reaches all API servers within seconds."""

TRIGGER_REJECTED_TIMES = 5
"""Rejections of a record, each after others were accepted, before it is given up."""

TRIGGER_RETRIES_PER_S = 100
"""Rejected records that are retried per second while a webhook denies everything."""

DENIAL_JOURNAL_BYTES_MAX = 256 * 1024
"""Memory for denials of gradually enforced policies that the leader has not counted,
per worker: each has about 200 bytes, and a worker records no owner twice."""

RESULT_JOURNAL_BYTES_MAX = 2 * 1024 * 1024
"""Size of one worker's journal of results for reports: 4,000 reviews of 500 bytes each.
It holds 20 s at 200 reviews a second, which is longer than the leader waits between two
writes."""

RESULT_RECORD_BYTES_MAX = 256 * 1024
"""One record in a journal of results: RESULT_ROWS_MAX rows, a few of them with messages
of maximum length."""

RESULTS_AHEAD_NS_MAX = 100_000_000
"""Time before the answer for audit-only rules whose results are reported, which take
microseconds. Slower ones continue after the answer, because a rule that cannot deny
must not cause a webhook time-out."""

RESULT_ROWS_MAX = 16
"""Results in one record; a review with more results takes several records."""

RESULT_ROWS_CACHED_MAX = 1024
"""Encoded results that a worker keeps, 300 bytes each, because most are equal."""

RESULTS_WAITING_MAX = 100_000
"""Reviews that can wait in one worker's journal of results; the limit in bytes is
reached first."""

RESULTS_AT_ONCE_MAX = 1000
"""Records of one journal of results that the leader reads ahead; at this number it
writes at once."""

EPHEMERAL_REPORT_BYTES_MAX = 1024 * 1024
"""One EphemeralReport: etcd stores 1.5 MiB. A replica has two, which hold the results
for over 10,000 objects while the reports pool does not merge them."""

EPHEMERAL_REPORT_PAIRS = 32
"""Pairs of EphemeralReports of all replicas, also of those that are gone: 64 MiB in
etcd if no pool merges them. Of three replicas, two share a pair in one of eleven
installations, and then repeat some writes."""

EPHEMERAL_REPORT_PAUSE_S_MAX = 16
"""Pause between two writes of a full EphemeralReport, so that it costs 64 KiB a second.
"""

RESULT_MERGERS = 4
"""Reports into which results of reviews are merged concurrently, without a scan of
their object: at one call of 5 ms each, 800 a second."""

RESULTS_FAILED_S_MAX = 15
"""How long results are kept whose merge ends with an unexpected error, e.g. because a
user has changed the report so that it cannot be decoded. The results of other objects
are merged meanwhile, and scans try again later."""

RESULTS_READ_AGES_S = (0, 10, 65)
"""Ages of a result at which its object is looked for, unless a watch has it: at once,
after other webhooks, and when the API server has ended the request (after 60 s, its
--request-timeout). Then the object was rejected, and the result is dropped."""

RESULTS_READ_PAUSE_S = 2
"""The least time between two reads of one kind's objects for results of reviews: a
thousand denied Pods a second cause as many reads as one."""

RESULTS_READ_SHARE = 0.1
"""The part of the time in which objects of a kind are read for results of reviews: a
list of 100,000 objects takes seconds, so a minute passes until the next one."""

RESULTS_READ_SINGLY_MAX = 4
"""Objects that are read separately instead of with one list, which costs about as much
in a small namespace and far more in a large one."""

RESULTS_READ_NAMESPACES_MAX = 4
"""Namespaces that are listed separately instead of the whole cluster."""

RESULTS_REFUSED_S = 15
"""How long a kind that may not be read counts as such, before it is tried again."""

ACCESS_RULES_MAX = 16
"""Namespaces with RoleBindings of the clean-up account whose rules are read to detect
changes, every few seconds with one call each. Changes in further ones are noticed when
the account's bindings change."""

TTL_CHECK_THREADS = 2
"""Threads of a worker that check whether TTL labels have an effect."""

TTL_CHECKS_MAX = 16
"""Objects with a TTL label whose review waits for permission checks, some milliseconds
each. Further ones are allowed without a warning."""

TTL_CHECKED_S = 3
"""How long the permissions of the clean-up account for a kind in a namespace are
remembered: a Job that creates 1,000 labelled objects causes few checks."""

LOG_INTERVAL_S = 60
"""Lines of one cause are limited within this time: a missing CustomResourceDefinition
caused 2,000 lines a minute."""

LOG_LINES_OF_CAUSE = 5
"""Warnings and errors of one cause in LOG_INTERVAL_S: some, as they name objects."""

LOG_LINES_OF_PLACE = 50
"""Warnings and errors of one place in the code in LOG_INTERVAL_S, for all causes."""

LOG_CAUSES_MAX = 1000
"""Causes of warnings and errors whose lines a process counts, 300 bytes each."""

ENTRIES_SHOWN_MAX = 10
"""GlobalContextEntries that /healthz lists because they cannot be read."""

RIGHTS_REFUSED_S = 600
"""How long a rejected call counts as a missing permission if it is not repeated: longer
than the longest pause between two attempts of a pool, five minutes."""

RIGHTS_MISSING_MAX = 256
"""Missing permissions that a process remembers, one for each namespace: users choose
what policies read, so the number needs a bound."""

RIGHTS_SHOWN_MAX = 10
"""Missing permissions that /healthz lists with the commands that grant them."""

RESULTS_MERGED_AT_ONCE_MAX = 200
"""Objects whose results are merged before they are removed from their EphemeralReports:
about a second of writes, so that a report that is full has room soon."""

RESULTS_LATE_S_MAX = 120
"""Results that wait longer are a problem in the pod's health: those of an object that
never appears wait for about a minute."""

RESULTS_WATCHED_S_MAX = 15
"""How long results wait until the watch of their object's kind receives the object. A
busy watch pauses while REPORTS_WAITING_MAX objects wait, and reading each object
instead would slow it further."""

RESULTS_JOINED_S_MAX = 2
"""How long results wait for the pending scan of their object, so that one write has
both. A rule can make a scan slow, and the report has to have the results within 5
seconds after the review; a leader stores them within one second, and the pool looks for
them every half second."""

SERVICE_ANSWER_BYTES_MAX = 10_000_000
"""Response of a service that a policy calls (maxAPICallResponseLength)."""

TOKEN_CHARACTERS_MAX = 64 * 1024
"""A JSON Web Token that a policy decodes; proxies limit all headers of a request to 60
KiB."""

JWKS_BYTES_MAX = 256 * 1024
JWKS_KEYS_MAX = 128
"""A set of keys of a token issuer; public issuers have less than 16 keys, 30 KiB."""

JWK_BYTES_MAX = 2048
JWK_RSA_BITS_MIN = 1024
JWK_RSA_BITS_MAX = 8192
JWK_RSA_EXPONENT_BITS_MAX = 32
"""A number of a key, and the size of an RSA key with its exponent. The largest takes
0.5 ms to verify a signature, and longer exponents many times as long; smaller keys can
be broken. Go allows exponents of 31 bits, and nearly all are 65537."""

JWKS_KEPT_MAX = 64
JWKS_KEPT_S = 300
JWKS_FAILURE_KEPT_S = 10
"""Sets of keys that a process keeps, and how long: an issuer that changes its keys
publishes the new ones for longer before it signs with them. A failed call is kept
briefly, so that an issuer that is down gets few calls."""

JWKS_TIMEOUT_S = 5
"""The time for fetching a set of keys: a proxy waits for the answer of a check."""

SERVICE_ADDRESSES_MAX = 16
"""Addresses of one service name that are tried one after the other."""

WEBHOOK_TIMEOUT_S_MAX = 30
"""timeoutSeconds of a webhook: a limit of the API server."""

CERTIFICATE_KEYS_KEPT_MAX = 4
"""Parsed private keys that a replica keeps: those of the authority and of the server,
each before and after a renewal."""

AUDIT_ANNOTATION_CHARACTERS_MAX = 1024
"""Length of an audit annotation of an answer: some twenty rules; the API server writes
it to its log for each request, and may cut long ones."""

MATCHED_KINDS_MAX = 64
"""Kinds and operations for which a linked policy remembers whether it matches."""

FINE_GRAINED_KEPT_MAX = 16_384
"""Policies with their own webhook path that a worker remembers after their deletion."""

SHARED_ANSWERS_MAX = 1024
"""Namespaces and users per generation whose labels and roles a worker caches."""

PATCH_COPY_NODES_MAX = 100_000
"""Values that one copy operation of a JSON patch can copy. Copying a part into itself
doubles it, and an object that etcd can store has fewer values."""

REGISTRY_MANIFEST_BYTES_MAX = 4 * 1024 * 1024
"""One image manifest or index: the size that registries must accept (OCI distribution
specification)."""

REGISTRY_BLOB_BYTES_MAX = 8 * 1024 * 1024
"""One image config or policy layer; etcd stores policies up to 1.5 MiB."""

REGISTRY_LAYERS_MAX = 1000
"""Layers pulled for one image, with one request each; container images have at most
127."""

ARTIFACT_BYTES_MAX = 64 * 1024 * 1024
"""All layers of an image with policies, without compression; as one policy file."""

ARTIFACT_ENTRIES_MAX = 100_000
"""Entries of one layer of an image with policies; the archive may also contain a small
file system."""

ARTIFACT_S_MAX = 60.0
"""Time for reading an image with policies, as for a command that pulls it."""

ARTIFACT_RETRY_S = 5.0
"""The pause after a failure to read an image with policies for the first time; until
then, every request is an error."""

IMAGE_SIGNATURES_MAX = 1000
"""Signatures read for one image, with one request each; this is Cosign's own limit."""

REGISTRY_JSON_PARTS_MAX = 50_000
"""Commas in one JSON document from a registry, which is parsed in one call: 20 ms at
worst, which bounds the wait of other reviews. A manifest of 1,000 signatures has
20,000; a trusted signer's statement about an image can have more."""

IMAGE_ENVELOPE_SIGNATURES_MAX = 100
"""Signatures of one attestation, each verified over the whole body of at most 8 MiB.
Cosign writes one, in-toto a handful. 100 of them take seconds at worst."""

IMAGE_ENVELOPE_BYTES_MAX = 1024 * 1024
"""One envelope of a Notation signature: with its certificates and a timestamp it has
some 10 KiB."""

IMAGE_NOTARY_CERTIFICATES_MAX = 10
"""Certificates in one chain, each verified with its issuer's key; real chains have two
to four."""

IMAGE_NOTARY_SIGNATURES_MAX = 10
"""Signatures of one image that are tried for type Notary: upstream's limit, and its
text."""

IMAGE_BUNDLE_BYTES_MAX = 8 * 1024 * 1024
"""One Sigstore bundle. It has the size limit of a blob, because an attestation can
contain an SBOM of some megabytes."""

IMAGE_BUNDLE_PARTS_MAX = 32
"""Log entries, timestamps and similar parts of one Sigstore bundle, each of which costs
a signature verification. The number is upstream's."""

IMAGE_REFERRERS_MAX = 50
"""Referrers of one image: upstream's limit, and its text."""

MANIFEST_BYTES_MAX = 4 * 1024 * 1024
"""A signed manifest after decompression; the annotations of an object have at most
256 KiB."""

MANIFEST_DOCUMENTS_MAX = 100
"""YAML documents of one signed file: each document of the object's kind is compared."""

MANIFEST_CANDIDATES_MAX = 3
"""Signed objects that a renamed object is compared with. The number is upstream's."""

MANIFEST_DRY_RUNS_MAX = 4
"""Concurrent dry runs of one process, and at most half of its threads for images, so
that a slow API server leaves threads for other images. Namespaced policies get at most
half of them."""

DRY_RUN_REVIEW_THREADS = 8
"""Threads of one worker for reviews of dry runs with I/O. They are separate, because
the API server sends a review of each object that a dry run of MANIFEST_DRY_RUNS_MAX
creates, from each worker, while the threads for images wait for these reviews."""

MANIFEST_FIELDS_MAX = 50_000
"""Values that are compared, in an object or in a signed manifest."""

MANIFEST_NAMES_MAX = 1_000_000
"""Names in the paths of all compared values of an object: 50,000 values at 20 levels.
A tuple of names for each of 50,000 values at 500 levels would take 200 MB."""

MANIFEST_DIFFERENCES_MAX = 500
"""Differences between an object and its manifest that a message lists: more than fit
into its 10,000 characters."""

MANIFEST_COMPARED_MAX = 200_000
"""Values that are compared to find the signed manifest of a renamed object, in all
manifests of its kind together: half a second."""

MANIFEST_SIGNATURES_MAX = 10
"""Signatures of one object that each attestor tries; the signing tool adds one for each
signer."""

IMAGE_SIGNATURE_BYTES_MAX = 16 * 1024 * 1024
"""Total size of all payloads of one signature or attestation manifest; an attestation
can contain an SBOM of some megabytes."""

IMAGE_CERTIFICATES_MAX = 100
"""Certificates in one PEM text: roots of a policy or a trust root, or the chain of a
signature. Fulcio's chain has three."""

IMAGE_CHAIN_LENGTH_MAX = 12
"""Certificates in one chain, including both ends: ten intermediates, as upstream allows
since CVE-2026-32280."""

IMAGE_CHAIN_CHECKS_MAX = 100
"""Signatures verified during the search for one chain: Go's own limit."""

IMAGE_SCTS_MAX = 20
"""Timestamps of certificate transparency logs in one certificate, each with a signature
to verify: Fulcio embeds one, web certificates two or three."""

IMAGE_LOG_ENTRIES_MAX = 20
"""Entries of a transparency log that are verified for one signature; each upload of the
same signature has an entry."""

IMAGE_LOG_BYTES_MAX = 1024 * 1024
"""One entry of a transparency log, or the log's response to a search. An entry contains
a hash, a signature and a certificate, some KiB."""

IMAGE_LOG_PROOF_MAX = 63
"""Hashes of one inclusion proof: a log counts its entries in 63 bits."""

IMAGE_TIMESTAMP_BYTES_MAX = 64 * 1024
"""One RFC 3161 timestamp with the chain of its authority, some KiB."""

IMAGE_TRUST_BYTES_MAX = 5 * 1024 * 1024
"""One file of a TUF repository: the limit for targets metadata of python-tuf."""

IMAGE_TRUSTED_ROOT_BYTES_MAX = 1024 * 1024
"""A trusted root within an ImageValidatingPolicy: upstream's own limit. Sigstore's has
7 KiB."""

IMAGE_TRUST_FILES_MAX = 100
"""Files read from a TUF repository: keys and certificates. Sigstore has ten."""

IMAGE_TRUST_ROOTS_MAX = 16
"""TUF repositories of ImageValidatingPolicies that one process keeps, each with up to
IMAGE_TRUST_FILES_MAX files. An organisation typically uses its own and Sigstore's."""

IMAGE_TRUST_S = 24 * 60 * 60
"""How long keys of a TUF repository are used before they are read again; its owner
signs new metadata every few days."""

IMAGE_TRUST_PAUSE_S = 5
"""After a read of a TUF repository that ended at its review's deadline, other reviews
fail at once for as long as the read took, up to this limit. Otherwise, each of them
would block a thread."""

IMAGE_TRUST_RETRY_S = 60
"""How long a failure to read a TUF repository is cached."""

IMAGE_POLICY_BYTES_MAX = 16 * 1024 * 1024
"""Size of the manifests and configurations of all images that ImageValidatingPolicies
read for one review, which keeps them until it ends. An image has some 50 KiB. The user
who creates a Pod chooses the images and their registries."""

LAYOUT_ENTRIES_MAX = 1000
"""Entries of one OCI image layout, each of which is read to find the referrers of an
image; an image with signatures and attestations has some hundred."""

RESPONSE_HEAD_BYTES_MAX = 1024 * 1024
"""Bytes of headers, interim responses and trailers of a response by a registry or a
service. ``http.client`` reads 100 headers of 64 KiB, and interim responses and trailers
without end."""

RESPONSE_SMALL_PARTS_MAX = 100_000
RESPONSE_PART_BYTES_MIN = 64
"""Chunks of a response of any size, and the mean size of all chunks if there are more.
A chunk takes five microseconds to read, so this is half a second, and 0.1 s per MiB.
Servers that write JSON as they encode it send a chunk for each token: such a list of
10,000 objects has some 80,000 chunks."""

REGISTRY_TOKEN_BYTES_MAX = 256 * 1024
"""Response of a token service; tokens are sent in headers, whose usual limit is 64 KiB.
"""

GLOBAL_CONTEXT_ENTRIES_HIGHEST = 4096
"""Highest maximum of GlobalContextEntries, each with one or two threads: a process may
have some 8,000 more."""

AUTHOR_CHECKS_MAX = 64
"""SubjectAccessReviews in one review of a namespaced policy; with more different
permissions, its author needs all permissions in the namespace."""

AUTHOR_BYTES_MAX = 16 * 1024
"""The record of a policy's author, with all groups: some hundred. The annotations of an
object may take 256 KiB."""

AUTHOR_CHECK_AGAIN_S = 3600.0
"""How often the author of a stored policy is checked again, and so for how long a
policy can outlive its author's right. A check takes some SubjectAccessReviews."""

AUTHOR_RETRY_S = 60.0
"""Pause after a check that the API server did not answer."""

AUTHORS_KEPT_MAX = 10_000
"""Policies whose author's verdict a pool keeps: some MiB."""

AUTHOR_POLL_S = 5.0
"""How often stored policies are searched for one that is due: reading the names of
10,000 takes milliseconds."""

SCHEDULE_CHARACTERS_MAX = 1_000
"""Characters of a clean-up schedule: a list of all 60 minutes has 170. A longer one
could take seconds to parse."""

OPENED_NAMESPACES_MAX = 256
"""Namespaces to which an annotation opens one GlobalContextEntry; each is a value in
the segment that workers read. With all entries 65,536, a few megabytes."""

GLOBAL_CONTEXT_ENTRY_BYTES_MAX = 16 * 1024 * 1024
"""Data of one GlobalContextEntry: the size that a worker keeps decoded
(DATA_CACHE_BYTES_MAX), 3,000 Deployments of 5 KiB. A larger entry is reported as an
error."""

GLOBAL_CONTEXT_BYTES_MAX = 64 * 1024 * 1024
"""Data of all GlobalContextEntries together; the largest are omitted first."""

LIVE_OBJECTS_BYTES_MAX = 32 * 1024 * 1024
"""Objects that one query of a rule can fetch from the API server."""

SCAN_PERMISSION_RESOURCES_MAX = 30
"""Resources of one ValidatingPolicy whose permissions its status reports, at three
calls each. The status of one policy then takes the controllers a tenth of a second."""

ACCESS_ANSWERS_MAX = 1024
"""Results of access reviews that a worker caches for a short time."""

REGISTRY_SESSIONS_MAX = 256
"""Repositories whose scheme and token one client caches, at some hundred bytes each."""

REGISTRY_TLS_CONTEXTS_MAX = 16
"""Contexts for TLS with registries that have own authorities or client certificates, at
some 1 MiB each for the system's authorities. Others are read again when needed, in 20
to 50 ms."""

REGISTRY_HOSTS_MAX = 64
"""Registries, with their token services and storage, to which one process keeps
connections, because the authors of Pods choose the names. Above it, connections to the
least recently used registry without a call are closed, and its next call opens a new
one. Scans also remember this many outages; above it, they forget the oldest and call
that registry again."""

REGISTRY_HOSTS_NAMED_MAX = 20
"""Registries, logs and mirrors that metrics of one process name in addition to those
that the settings name, each with some ten outcomes; clusters pull from some five
registries."""

REGISTRY_HOSTS_NAMED_IDLE_S = 3600
"""Seconds without a call after which a host loses its name in metrics to another host:
20 names in an hour, so that the series in the metrics page of a process stay few."""

REGISTRY_CALLS_PER_HOST_MAX = 8
"""Concurrent calls of one process to one registry, and at most half of its threads for
images. A registry that hangs cannot block more."""

REGISTRY_FIRST_BYTE_S = 3.0
REGISTRY_BYTES_PER_S_MIN = 16 * 1024
"""From the start of a call to a registry to the first byte of its response, and the
pace of the response after as long again. Remote registries take 0.2 s, and send some
MiB per second."""

REGISTRY_ANSWERED_S = 3600.0
REGISTRIES_ANSWERED_MAX = 1024
"""How long a registry counts as answering after a response, and how many do: clusters
pull from some five, and authors of Pods choose the names."""

THREAD_TIME_HALF_LIFE_S = 10.0
"""Time after which half of the thread-time that a tenant has used is forgotten: the
API server's usual timeout of a review."""

RESERVED_THREADS_DIVISOR = 4
BRIEF_WORK_S = 1.0
"""The part of a lane's threads that only tenants get whose reviews took less than this
on average, or that run none: registries that answer take 0.2 s a call, so whoever uses
them waits for none that does not."""

REGISTRY_PLACE_WAIT_S = 1.0
"""How long a call waits for a free slot at its registry. A remote registry answers in
0.2 s; one that hangs must not also block the waiting threads."""

REGISTRY_LOOKUPS_MAX = 16
"""Concurrent name lookups for registries, at one thread each. The resolver gives up
after 10 to 30 s, and cannot be cancelled before."""

LOOKUP_S_MAX = 5
"""How long an expression waits for the addresses of a name: half of a review's time by
default. A name server answers in milliseconds, or the response is lost."""

REGISTRY_OUTAGE_S = 30
"""How long scans do not call a registry that did not answer. Objects are retried after
some seconds, later after minutes."""

REGISTRY_SCAN_CALL_S = 5
"""Time for one call of a scan to a registry, as long as upstream takes to connect; a
layer that is read has some 100 KiB."""

IMAGE_REASONS_MAX = 4
"""Attestors of an ImageValidatingPolicy for which an answer explains why they were not
satisfied; a policy has one or two."""

IMAGE_REASON_CHARACTERS_MAX = 500
"""The length of an explanation why an attestor was not satisfied: the API server shows
a whole denial to the user, in one line."""

IMAGE_SCAN_READ_S = 10
"""How long a scan can take to read or verify one part of an image, including log and
trust root: two calls of REGISTRY_SCAN_CALL_S."""

IMAGE_DIGESTS_KEPT_S = 300
"""How long scans use the digest that a tag was resolved to: a thousand Pods with the
same image cause one call. The next scan notices a moved tag."""

IMAGE_DIGESTS_KEPT_MAX = 4096
"""Tags that scans cache, at some 200 bytes each."""

REGISTRY_IDLE_PER_HOST_MAX = 8
"""Idle connections to one registry that stay open for the next call."""

IMAGE_RECORD_CHARACTERS_MAX = 256 * 1024
"""The annotation with outcomes of images: the API server's limit for all annotations of
an object."""

IMAGE_RECORD_ENTRIES_MAX = 1000
"""Outcomes read for one object, each compared with the imageReferences of rules. An
entry takes at least 100 characters, and a Pod has some dozen images."""

IMAGES_AT_ONCE_MAX = 8
"""Images of one review that are verified concurrently, by the thread of the review and
by one helper thread fewer than this. The reviews of a process share the helpers. More
threads would only compete for the core."""

IMAGE_REVIEWS_WAITING_MAX = 128
"""Reviews of one worker that wait for a thread to verify images, at most half of them
with images of one registry and a quarter in one namespace; for further ones, the
failure policy decides. At 25 ms per image, the last one waits 400 ms with 8 threads."""

REGISTRY_SECRETS_MAX = 64
"""Secrets with registry credentials that one process caches for a minute."""

IMAGE_KEY_SECRETS_MAX = 256
"""Public keys from Secrets that one process keeps for a minute, less than 1 KiB each:
some hundred namespaces with policies that name a Secret of their own."""

KMS_KEY_READ_S = 3600
"""A public key of a key service is read again after this: a key is replaced by a new
version or another key, which an administrator announces hours before."""

KMS_KEY_KEPT_S = 86_400
"""How long the last public key is used while the key service does not answer: longer
than its outages, and short enough that nobody relies on a key that nobody confirms."""

KMS_RETRY_S = 30
"""Pause before a key service that did not answer, or refused a key, is asked again."""

IMAGE_KEY_FAILURES_MAX = 4096
"""Secrets without a usable public key that one process keeps in memory for a second,
with a message of at most 512 characters each. More than one policy can name, so a
policy does not read the same Secret again for each image."""

IMAGE_REFERENCES_CACHED_MAX = 256
"""Parsed references: the images of a large cluster's Pods in a minute; a reference has
at most 16 Ki characters."""

IMAGE_CLIENTS_MAX = 32
"""Clients of one worker, one for each imageRegistryCredentials block in use."""

IMAGE_CACHED_BYTES_MAX = 1024 * 1024
"""One verified result in the cache of the pod: an eighth of the cache. Larger
statements are read again. A signature takes 200 bytes, an SBOM some 100 KiB."""

IMAGE_TOO_LARGE_MAX = 256
"""Results that one worker remembers as too large for the cache: the same number as its
parsed references."""

IMAGE_CACHE_BYTES_MAX = 8 * 1024 * 1024
"""All verified results of the pod. Their directory in memory also holds the policies.
"""

IMAGE_FLIGHT_WAIT_S = 2.0
"""How long a review waits for another one that verifies the same image; after this time
it verifies the image itself."""

REGISTRY_REDIRECTS_MAX = 5
"""Redirects of one download: registries send one, to their storage."""

MATCH_CONDITIONS_MAX = 63
"""Match conditions of one webhook: the API server accepts 64, and one can be ours."""

JOINED_CONDITIONS_MAX = 16
"""Different conditions of policies that share a webhook, and look-ups of the user's
groups in them. K8S: evaluating all of them may cost a million. A look-up costs as much
as the user has groups, which a request's headers limit to some 50,000."""

JOINED_CONDITIONS_CHARACTERS_MAX = 8 * 1024
"""Length of the joined conditions of one webhook: a few hundred usual terms."""

EXCEPTION_CONDITIONS_MAX = 64
"""Conditions of a PolicyException for policies in CEL, as in Kyverno 1.19.1: as many as
the API server accepts in one policy of its own."""

WEBHOOK_PATH_CHARACTERS_MAX = 32 * 1024
"""Length of the names of policies in CEL in the path of one webhook: half of our limit
for a request's head. A thousand policies are one webhook and one call, not four; the
API server calls a webhook directly, or through its own egress proxy."""

ROUTES_KEPT_MAX = 32
"""Parsed paths that a worker keeps: the API server uses one for each webhook, some two
dozen. Their texts are at most as long as a request's head, so all take a few MiB."""

BUCKETS_MAX = 100
"""Bucket boundaries of one histogram: each series has a cell for every bucket, and
dashboards use a dozen."""

BUCKET_TABLES_MAX = 32
"""Different sets of bucket boundaries during the lifetime of one process; later ones
take effect after a restart."""

CLEANUP_RUN_OBJECTS_MAX = 100_000
"""Objects that one run of a clean-up policy collects for deletion, about 300 bytes
each. The run continues after these are deleted."""

CLEANUP_MATCHED_MAX = 1_000_000
"""Objects that one run of a clean-up policy remembers in order to count each of them
once, about 150 bytes each. A deletion budget in per cent is computed from the count."""

CLEANUP_RUN_S_MAX = 600
"""Time in which a run of a clean-up policy decides which objects to delete. Several
policies share a few threads, and authors of namespaced ones are not trusted."""

CLEANUP_EVENTS_MAX = 25
"""Events about single objects that one run of a clean-up policy causes; one additional
Event reports the number of the remaining objects."""

CLEANUP_SHOWN_MAX = 50
"""Objects that a status or an Event of a clean-up policy lists."""

CLEANUP_MESSAGE_CHARACTERS_MAX = 4096
"""The message of a clean-up policy's condition; the API server accepts 32,768."""

CLEANUP_ANSWERS_MAX = 256
"""Responses of the API server and of services that one run of a clean-up policy caches,
so that a context entry costs one call per run instead of one per object."""

CLEANUP_POLICIES_MAX = 10_000
"""Clean-up policies that wait for their next run; further ones are reconsidered as soon
as there is room."""

CLEANUP_NAMESPACES_AT_A_TIME = 2
"""Namespaces whose CleanupPolicies can run concurrently, one run each. The third thread
is reserved for ClusterCleanupPolicies."""

CLEANUP_WATCHES_MAX = 256
"""Resources whose objects are watched for the TTL label, at one connection and one
thread each. Clusters with many CustomResourceDefinitions serve some hundred kinds, and
the clean-up account can delete only a few of them."""

CLEANUP_TTL_TIMERS_MAX = 200_000
"""Objects with a TTL label that wait for their expiry, about 300 bytes each. Further
ones are found in the informers' caches as soon as there is room."""

BACKGROUND_TRIGGERS_MAX = 100_000
"""Triggers, and as many policies, that wait in the background pool; about 500 bytes
each. Policies whose triggers do not fit are synced later."""

BACKGROUND_WRITTEN_MAX = 20_000
"""Generated objects whose last write is remembered, about 500 bytes each, in order to
skip updates without changes and to detect contested objects."""

BACKGROUND_RECORD_BYTES_MAX = 480_000
"""Each of the two records in the pool's ConfigMap, about 5,000 rules: beyond this size,
tenants with more than the average record no more. K8S: a ConfigMap has at most 1 MiB.
"""

BACKGROUND_NAMES_MAX = 100_000
"""Names of triggers that are remembered by uid, about 200 bytes each; the names of the
last list are always kept. A list of all triggers of a kind replaces them."""

BACKGROUND_ABSENT_MAX = 20_000
"""Uids in labels for which no object was found, about 200 bytes each. If there are
more, each of them costs a list of its kind again."""

BACKGROUND_DECISIONS_MAX = 16
"""Changes to one object that wait until a write to it has ended. A write takes
milliseconds, in which other writers rarely make more changes. Further changes are
handled at once."""

GENERATED_OBJECTS_MAX = 1000
"""Objects that one GeneratingPolicy generates for one trigger. Each takes a call, so
1,000 mean minutes of work for one thread. A policy with more probably lists a cluster
by mistake."""

GENERATED_KINDS_MAX = 64
"""Resources whose objects are watched for GeneratingPolicies with synchronization, at
one connection to the API server each. Objects of further resources are updated at the
next scan."""

GENERATED_KINDS_OF_NAMESPACE_MAX = 8
"""Watched resources that the policies of one namespace can use: a tenant's are a few of
ConfigMap, Secret, NetworkPolicy, ResourceQuota, LimitRange, Role and RoleBinding."""

BACKGROUND_LOCKS = 256
"""Locks for the triggers that are processed: far more than threads, so that two
triggers rarely share one."""

BACKGROUND_SLOW_TENANTS_MAX = 10_000
"""Tenants with slow rules that the pool keeps in mind, for five minutes each: more than
clusters have. Beyond that, the oldest is no longer limited."""

BACKGROUND_ENDING_S_MAX = 3600
"""How long an UpdateRequest waits for the end of a deletion: drained Pods and
finalizers of cloud providers take minutes."""

BACKGROUND_SOURCE_LISTS_MAX = 32
"""Lists that one task makes to find out whether sources of clones still exist, one for
each kind and namespace. A rule without variables has a few; if the namespace is a
variable, forged labels could name every namespace."""

BACKGROUND_FINISH_S_MAX = 4.0
"""Time of the background pool, when it ends, to look for the triggers of policies that
reviews only named: about as much as the calls of its threads in progress get."""

POOL_END_S_MAX = 8.5
"""Time for the work of a pool to end: a second, ``BACKGROUND_FINISH_S_MAX``, and three
seconds for calls in progress. If it needs longer, its lease is not released."""

ROLE_END_S_MAX = 12.0
"""Time for a process to end after the webhook: ``POOL_END_S_MAX``, a second each for
the lease and for Events, and ``OTLP_FLUSH_S_MAX``. With the delay (10 s) and the time
(25 s and 3 s) for the webhook before, it fits into the grace period of our pods."""

BACKGROUND_RULE_S_MAX = 30
"""Time to evaluate a rule for one trigger in the background."""

BACKGROUND_ATTEMPTS_MAX = 10
"""Failed attempts at an UpdateRequest, or at a task of a policy event. With the pauses
between them, they take about eight minutes, in which an operator can grant missing
permissions."""

BACKGROUND_CROWDED_SHARE = 0.5
"""Share of updateRequestThreshold, from which all triggers wait, that failing requests
may fill before they have fewer attempts. Otherwise, the failing requests of one tenant
would delay all other tenants for minutes."""

BACKGROUND_CROWDED_ATTEMPTS = 4
"""Failed attempts at an UpdateRequest while many fail, within about seven seconds;
upstream has five, without pauses."""

BACKGROUND_MESSAGE_CHARACTERS_MAX = 4096
"""The message in the status of an UpdateRequest."""

RECORDING_QUEUE_REVIEWS_MAX = 1000
"""Reviews of one worker that wait to be recorded; the thread that writes them takes
about 0.3 ms for each."""

RECORDING_REVIEW_BYTES_MAX = 1024 * 1024
"""A larger review is not recorded: it could displace hundreds of usual ones, and few
objects come near etcd's limit of 1.5 MiB."""

RECORDING_FILE_SHARE = 4
"""The part of a recording's bytes that open files can take. The rest is for closed
files; when it is full, the oldest one is deleted."""

RECORDING_SHARE_S = 60
"""In this time, one namespace fills at most half of a worker's file; more is dropped
and counted. So reviews of one namespace do not delete all others within seconds. Half
of a file of 16 MiB holds about 16,000 reviews."""

RECORDING_LINE_BYTES_MAX = 16 * 1024 * 1024
"""Maximum length of a line in a recording: a review, its JSON patch and its labels. A
longer line is not from a recorder, and reading it would exhaust the memory."""

REPLAY_LISTED_MAX = 10_000
"""Changed requests that a replay lists; it counts all of them. Only programs read a
list of this length, and it needs about 10 MB."""

COMPARED_LISTED_MAX = 100
"""Differences that ``apply --base --head`` lists for people; JSON lists all. GitHub
rejects a comment of more than 65,536 characters."""

COMPARED_DIFF_LINES_MAX = 60
"""Lines of each diff for people; JSON has all."""

REPLAY_EQUAL_REQUESTS_MAX = 64
"""Equal requests within half a minute, e.g. retries, whose reviews on several paths are
distinguished; with more of them, one request can count as two."""

REPORTS_EVENTS_BURST = 25
"""Objects for which scans write Events of one rule in a burst: a new policy may fail
for every object of a large cluster, and the reports contain the same results."""

REPORTS_EVENTS_PER_S = 0.2
"""The refill rate of a rule's budget for Events from scans: twelve objects a minute."""

REPORTS_EVENTS_RULES_MAX = 4_096
"""Rules whose budget for Events is remembered; 200 bytes each. An evicted rule starts
with a full budget."""

REPORTS_EVENTS_OBJECTS_MAX = 4_096
"""Pairs of an object and a policy with image rules and other rules for which the pool
waits until both are evaluated, 500 bytes each, if successes become Events. The Event of
a forgotten pair is dropped and counted."""

NOTIFY_GROUPS_MAX = 1_000
"""Groups of new failures that wait for the operator's receiver, 3 KB each at most: a
rule can fail in each namespace of a large cluster. More are dropped and counted."""

NOTIFY_GROUPS_SENT_MAX = 100
"""Groups of one notification, about 200 KB: receivers limit the size of a request."""

NOTIFY_OBJECTS_MAX = 5
"""Objects that a group names; people open the reports to see all of them."""

NOTIFY_CHARACTERS_MAX = 500
"""Characters of a message or name in a notification, as chats show no more."""

NOTIFY_S_MAX = 10.0
"""Time for one notification. A receiver that hangs delays only the next one."""

NOTIFY_PAUSE_S_MAX = 300.0
"""The longest pause after failed notifications: a receiver that is back after a night
gets what waits within minutes."""

SPANS_PER_TRACE_MAX = 128
"""Calls and steps of one trace, and as many slow policies; a review with more of them
is past its deadline, and the numbers of a batch and of a queue must mean something."""

SPANS_QUEUED_MAX = 4096
"""Spans that wait for a collector, about 4 MiB: some seconds of a busy worker of which
each review is traced. More are dropped and counted."""

TRACE_BATCH_SPANS_MAX = 512
"""Spans in one request to a collector, as in OpenTelemetry's own processors: about 200
KiB; the usual limit of a collector is 4 MiB."""

TRACE_NAMES_MAX = 20
"""Names in one attribute of a span, as in a line about a decision."""

OTLP_DEADLINE_S = 10.0
"""Time for one request to a collector, its repetitions included: OpenTelemetry's
default. A thread without other work waits for it."""

OTLP_FLUSH_S_MAX = 1.0
"""Time for sending what waits when a process ends: a part of ``ROLE_END_S_MAX``."""

POOL_OBSERVATIONS_MAX = 10_000
"""Observations of histograms between two writes of a pool's page, some hundred
milliseconds apart; a pool makes a few hundred observations a second."""

POOL_FRAME_BYTES_MAX = 32 * 1024 * 1024
"""A message between a coordinator and an evaluator: a page of a list, whose 500 objects
may have some 10 KiB each, with room for large ones."""

REPORT_BYTES_MAX = 1024 * 1024
"""Results in the report of one object: etcd rejects objects above 1.5 MiB."""

REPORT_MESSAGE_CHARACTERS_MAX = 8192
"""The message of one result in a report."""

REPORTS_WAITING_MAX = 2000
"""Objects that wait for an evaluator; watches and lists pause at the limit."""

REPORTS_WAITING_BYTES_MAX = 16 * 1024 * 1024
"""The total size of the objects that wait for an evaluator: some 2,000 Pods."""

REPORTS_WRITERS = 6
"""Reports that are written concurrently, over as many connections. A write takes the
API server some 11 ms of CPU, so more writers only wait for each other: with 2, 12 and
24 writers, a server on two busy cores stored 39, 42 and 49 reports a second."""

REPORTS_REVIEW_S = 3.0
"""How long a changed object waits for the results of its review: a leader writes them
once a second, and the pool looks for them every half second. On a busy machine, both
take longer; the report has to be right within 5 seconds."""

REPORTS_INTERVAL_S = 1.0
"""Minimum time between two evaluations of a changed object, so that an object that
changes all the time causes one write per second."""

REPORTS_BATCH_OBJECTS = 50
"""Objects in one batch for an evaluator: some 25 ms of work."""

REPORTS_BATCH_BYTES_MAX = 2 * 1024 * 1024
"""The total size of a batch; a single larger object forms its own batch."""

REPORTS_BATCH_S_MAX = 120
"""Time for a batch; rules can call services. A slower evaluator is killed."""

REPORTS_OBJECT_S_MAX = 30
"""Time to evaluate all rules for one object."""

REPORTS_BATCH_EVALUATED_S_MAX = 60
"""After this time, the remaining objects of a batch are postponed: with the object that
is being evaluated, it is well below REPORTS_BATCH_S_MAX."""

REPORTS_BATCH_SHARE_S_MAX = 10
"""After this time for objects of one namespace, its further objects in the batch are
postponed, because other namespaces wait. 50 calls of 200 ms fit."""

REPORTS_IMAGES_OBJECT_S_MAX = 60
"""Time to verify all images of one object during a scan: some dozen images, and
registries that answer within a second or two."""

REPORTS_IMAGES_BATCH_S_MAX = 90
"""Time for one object in the lane for images; a slower evaluator is killed."""

REPORTS_IMAGE_THREADS = 6
"""Objects whose images one evaluator process verifies concurrently: as many as the
coordinator sends at a time. At most half of them are of one namespace or one registry,
so a dead registry does not delay the images of others. They mostly wait for registries;
with more of them, other rules would wait for the interpreter."""

REPORTS_WATCHES_MAX = 256
"""Kinds that are scanned, at one connection and one thread each."""

REPORTS_POLICIES_BYTES_MAX = 2 * 1024 * 1024
"""Native admission policies that are reported, with their bindings. Each batch includes
the policies of its kind; a hundred have some 200 KiB."""

REPORTS_ADMISSION_POLICIES_S_MAX = 30
"""How long scans wait for the first list of native admission policies. After this time,
scans start without them, and report rows that may belong to them stay."""

REPORTS_RETRIES_MAX = 100_000
"""Objects that are retried after a failure; about 300 bytes each. Further ones are
found by the next scan of their kind."""

DASHBOARD_RESULTS_MAX = 200_000
"""Results of stored reports that the dashboard lists: some 200 bytes each, 400 while a
list is sorted. Further ones appear only in its totals, and a metric counts them."""

DASHBOARD_RESULTS_BYTES_MAX = 128 * 1024 * 1024
"""The total length of the strings in the results that the dashboard lists, counting
those of one report once: 200,000 results with messages of some 500 characters."""

DASHBOARD_REPORTS_MAX = 100_000
"""Reports whose results the dashboard counts: about 1 KB each without the results.
Further reports are missing from all totals, and a metric counts their results."""

DASHBOARD_TEXT_CHARACTERS_MAX = 512
"""A name, policy, category etc. of a stored report, and a field of a query. A policy's
namespace and name have at most 317 characters; other programs may write more."""

DASHBOARD_MESSAGE_CHARACTERS_MAX = 1024
"""The message of a stored result; a page of 100 results has at most 100 KB of them."""

DASHBOARD_ROWS = 100
"""Rows of one page of a list: some 60 KB."""

DASHBOARD_CONNECTIONS_MAX = 32
"""Connections of browsers that have not sent a request yet, or are rejected; the oldest
one is closed for a new one."""

DASHBOARD_PAGES_MAX = 8
"""Concurrent admitted requests, of which one page is written at a time. Further ones
get 503: a browser with one reader requests one page."""

DASHBOARD_SAMPLES_MAX = 120
"""Samples in a chart over time. When the chart is full, every second sample is dropped
and the interval doubles, so a chart always begins at the start."""

DASHBOARD_SERIES_MAX = 400
"""Groups whose counts are kept over time; 120 samples of all groups take 2 MB. Further
groups have no chart."""

DASHBOARD_EXCEPTIONS_MAX = 1000
"""PolicyExceptions that the dashboard lists; it counts all of them."""

DENIALS_KEPT = 64
"""The last denials of a worker that the dashboard can show: more than one reads."""

DENIAL_BYTES_MAX = 4096
"""One of them: names, and a message of at least 400 characters. A worker's file has
256 KiB."""

DENIALS_PER_S_MAX = 20
"""Denials that a worker writes for the dashboard in a second, and at once, so that
denials in thousands, which nobody reads one by one, cost the reviews nothing."""

DASHBOARD_DENIALS_SHOWN = 20
"""Denials on the dashboard's first page."""

DASHBOARD_TOKEN_CHARACTERS_MIN = 16
"""The minimum length of a token: a shorter one could be guessed, because attempts are
not slowed down."""

GENERATED_POLICY_WRITES_MAX = 50
"""Policies whose generated admission policies are written in one pass: about a quarter
of a second, after which other controllers run."""

GENERATED_POLICY_FAILURES_MAX = 3
"""Failed policies after which a pass ends, because each failure can take as long as a
call's time limit. The next pass begins with the other policies."""

REWRITE_INPUTS_MIN = 3000
"""Requests on which `fix policy --to` compares both policies of a small policy: about
half a second."""

REWRITE_INPUTS_MAX = 6_000
"""Requests on which `fix policy --to` compares both policies of a large policy: most
values at every place of the largest samples, about a second."""

AUTHZ_ERROR_CHARS_MAX = 1024
"""Characters of an error that a proxy is told: enough for an expression's error, and no
policy can send a large value of a request back in it."""

JSON_PAYLOAD_THREADS = 2
"""Threads that judge JSON payloads in one worker. They compute, so more would only take
turns, and one that waits for a service leaves the other to the rest."""

JSON_PAYLOADS_WAITING_MAX = 16
"""JSON payloads that can wait for a thread in one worker; a pipeline sends a few at a
time, and each can have BODY_BYTES_MAX."""

AUTHZ_HEADERS_MAX = 256
"""Headers of a request to judge, and of an answer to an HTTP client: proxies accept
about a hundred."""

AUTHZ_STREAMS_MAX = 1000
"""Concurrent calls of one connection of Envoy, which has a connection for each of its
threads; further calls wait in Envoy."""

AUTHZ_CALLS_MAX = 4096
"""Concurrent calls of all connections of one gRPC server, each a request in memory;
Envoy denies what is refused."""

ROLLOUTS_MAX = 2_000
"""Policies with a state of gradual enforcement, about 200 bytes each in one ConfigMap,
which has up to a MiB; further ones stay at their first step."""

ROLLOUT_STEPS_MAX = 20
"""Steps or rings of a policy that is put into force gradually: 5 % each."""

ROLLOUT_PATTERNS_MAX = 100
"""Patterns of namespaces in all rings of a policy, which each denial compares."""

ROLLOUT_TEXT_CHARACTERS_MAX = 8_192
"""Characters of an annotation of gradual enforcement: all patterns, each as long as a
namespace's name."""

EXCEPTION_WARNED_NS = 7 * 24 * 3600 * 10**9
"""An exception is reported for a week before it expires: a team that looks once a week
has time to renew it."""

EXCEPTION_REASON_CHARACTERS_MAX = 512
"""Characters of an exception's reason, which fits into the note of an Event, whose
limit is 1,024 bytes, together with the rest of the sentence."""

ROLLOUT_STEP_NS_MIN = 60 * 10**9
"""A minute: nobody could look at the denials of a shorter step."""

ROLLOUT_STEP_NS_MAX = 8_760 * 3_600 * 10**9
"""A year."""

ROLLOUT_DENIALS_MAX = 200
"""Largest budget of denials of a policy: each replica stores that many, 60 bytes each,
in a ConfigMap, which has up to a MiB."""

ROLLOUT_WINDOW_NS_MAX = 168 * 3_600 * 10**9
"""A week: the window of a budget of denials, and so the age of what is stored."""

ROLLOUT_DENIALS_KEPT_MAX = 1_000
"""Denials of all policies that one replica stores, 60 bytes each, so that a dozen
replicas fit into one ConfigMap. Further denials do not count."""

ROLLOUT_TENANTS_KEPT_MAX = 500
"""Of these, denials by namespaced policies: their authors leave room to others."""

ROLLOUT_TENANT_KEPT_MAX = 50
"""Of these, denials by the policies of one namespace."""
