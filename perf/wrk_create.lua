-- Post one object to an API server over and over; tell the numbers as a line of JSON.
-- PERF_BODY names the file with the object, PERF_TOKEN the file with the token.
local function read(name)
  local file = io.open(os.getenv(name), "rb")
  return file:read("*a")
end

wrk.method = "POST"
wrk.body = read("PERF_BODY")
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. read("PERF_TOKEN")

function done(summary, latency, _requests)
  local errors = summary.errors
  io.write(string.format(
    '\n@{"requests": %d, "seconds": %f, "refused": %d, "broken": %d, "timeouts": %d,'
      .. ' "p50_ms": %f, "p99_ms": %f}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write, errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
