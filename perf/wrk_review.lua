-- Post one review over and over, as of a thousand Pods of one ReplicaSet: "abcde", with
-- which its names end, is another text each time. Tell the numbers as one line of JSON.
-- PERF_BODY names the file with the review.
local file = io.open(os.getenv("PERF_BODY"), "rb")
local body = file:read("*a")
local requests, last = {}, 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"

function init(_args)
  for number = 1, 1000 do
    local named = body:gsub("abcde", string.format("%05d", number))
    requests[number] = wrk.format(nil, nil, nil, named)
  end
end

function request()
  last = last % #requests + 1
  return requests[last]
end

function done(summary, latency, _requests)
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write
    + summary.errors.status + summary.errors.timeout
  io.write(string.format(
    '\n@{"requests": %d, "seconds": %f, "failed": %d, "p50_ms": %f, "p99_ms": %f}\n',
    summary.requests, summary.duration / 1e6, failed,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
