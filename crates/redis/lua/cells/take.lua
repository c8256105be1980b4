-- Decides on a request by a rate limit, and counts it, by the server's clock.
-- KEYS  the limit: its state, two decimal numbers
-- ARGV  1 'window' | 'gcra'  2 period | increment, in microseconds  3 limit | bucket, in microseconds
--       4 cost | ''  5 'peek' to count nothing
-- Returns '<1 if it is let through, else 0> <first> <second> <microseconds now>' | 'damaged'
-- All numbers are below 2^53, which a double counts exactly.
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local stored, first, second = call('GET', KEYS[1]), 0, 0
if stored then
  first, second = string.match(stored, '^(%d+) (%d+)$')
  if not first then return 'damaged' end
  first, second = tonumber(first), tonumber(second)
end
local one, two = tonumber(ARGV[2]), tonumber(ARGV[3])
local a, b, ends, allowed
if ARGV[1] == 'window' then
  a = math.max((now - now % one) / one, first)
  b = tonumber(ARGV[4])
  if a == first then b = b + second end
  allowed, ends = b <= two, (a + 1) * one
else
  a, b = math.max(first, now) + one, 0
  allowed, ends = a <= now + two, a
end
if allowed and ARGV[5] ~= 'peek' then
  first, second = a, b
  local left = math.max(1, math.ceil((ends - now) / 1000))
  call('SET', KEYS[1], string.format('%.0f %.0f', a, b), 'PX', string.format('%.0f', left))
end
return string.format('%d %.0f %.0f %.0f', allowed and 1 or 0, first, second, now)
