-- Shows a lock, one page of its pool and its queue at a time.
-- KEYS  K, Q, W, P, E
-- ARGV  1 cursor in the pool: '0' at first  2 the last ticket seen in the queue: '-inf' at first;
--       '-' for either: not wanted
-- Returns {server ms, value of K or nil, its PTTL, {owner, end, record, ...} of the pool,
--          {owner, record, ...} of the queue, in order, and both cursors, '-' at their ends}.
-- Invariant: reads only. Expired holders and places are left out. A holder may be on two pages; one that
-- holds from the first page to the last is on at least one. A waiter is on at most one page.
local K, Q, W, P, E = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local PAGE = 128
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value, pool, line = call('GET', K), {}, {}
local pool_at, line_at = '-', '-'

if ARGV[1] ~= '-' and value and string.find(value, '^pool [sp] %d+$') then
  local page = call('HSCAN', P, ARGV[1], 'COUNT', tostring(PAGE))
  if page[1] ~= '0' then pool_at = page[1] end
  for i = 1, #page[2], 2 do
    local ends = call('ZSCORE', E, page[2][i])
    if ends and tonumber(ends) > now then
      pool[#pool + 1], pool[#pool + 2], pool[#pool + 3] = page[2][i], ends, page[2][i + 1]
    end
  end
end

if ARGV[2] ~= '-' then
  local from = ARGV[2] == '-inf' and ARGV[2] or '(' .. ARGV[2]
  local page = call('ZRANGEBYSCORE', Q, from, '+inf', 'WITHSCORES', 'LIMIT', '0', tostring(PAGE))
  if #page == 2 * PAGE then line_at = page[#page] end
  for i = 1, #page, 2 do
    local record = call('HGET', W, page[i])
    if record and tonumber(string.match(record, '^%d+')) > now then
      line[#line + 1], line[#line + 2] = page[i], record
    end
  end
end
return {string.format('%.0f', now), value, call('PTTL', K), pool, line, pool_at, line_at}
