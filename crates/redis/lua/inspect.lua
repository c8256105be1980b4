-- A snapshot of one lock.
-- KEYS  K, Q, W, P, E
-- Returns {server ms, value of K or nil, its PTTL, {owner, end, record, ...} of the pool,
--          {owner, record, ...} of the line, in order}. Ghosts and the ended are left out.
local K, Q, W, P, E = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local value = redis.call('GET', K)
local pool, line = {}, {}
if value and string.find(value, '^pool [sp] %d+$') then
  local ends = redis.call('ZRANGE', E, '0', '-1', 'WITHSCORES')
  for i = 1, #ends, 2 do
    local record = redis.call('HGET', P, ends[i])
    if record and tonumber(ends[i + 1]) > now then
      pool[#pool + 1], pool[#pool + 2], pool[#pool + 3] = ends[i], ends[i + 1], record
    end
  end
end
for _, owner in ipairs(redis.call('LRANGE', Q, '0', '-1')) do
  local record = redis.call('HGET', W, owner)
  if record and tonumber(string.match(record, '^%d+')) > now then
    line[#line + 1], line[#line + 2] = owner, record
  end
end
return {string.format('%.0f', now), value, redis.call('PTTL', K), pool, line}
