-- The engine: what claim, release and evict share when a lock is contended or pooled.
-- Composed behind each script's fast path at build, with line.lua or quorum/line.lua at its end;
-- never run alone.
--
-- Expects these locals: K, Q, W, P, E, T (key names) and mint (of mint.lua).
--   K  string   the holder: "<owner><mark><token> <since> <pid> <host> <label>", or a foreign
--               value, or "pool <kind> <taken>" while shared or permit holders are in P. The mark
--               is a space, or ! when somebody may wait: a release without it need not look.
--               Since may be -: then the token tells, which begins as the time
--   Q  list     owners in the order they came; those no longer in W are ghosts
--   W  hash     owner -> "<ends> <arrived> <kind> <take> <of> <ttl> <inbox> <pid> <host> <label>"
--   P  hash     owner -> "<token> <since> <kind> <take> <of> <ttl> <pid> <host> <label>"
--   E  zset     owner -> the end of its term
--   T  string   the last token of this slot
-- Times are the server's, in ms. Every number goes to a command as text: see mint.lua.
--
-- Invariant: K exists exactly while somebody holds, so any SET NX client is kept out; every key
-- but T ends by itself when nobody refreshes it.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function number(n) return string.format('%.0f', n) end

-- Splits "a b c rest of it" into n words, the last one taking the rest.
local function words(text, n)
  local found, from = {}, 1
  for i = 1, n - 1 do
    local at = string.find(text, ' ', from, true)
    if not at then break end
    found[i] = string.sub(text, from, at - 1)
    from = at + 1
  end
  found[n] = string.sub(text, from)
  return found
end

-- What the holders leave room for: kind ('-' nobody, 'x', 's', 'p') and permits taken.
local function room()
  local value = redis.call('GET', K)
  if not value then return '-', 0 end
  local kind, taken = string.match(value, '^pool ([sp]) (%d+)$')
  if not kind then return 'x', 0 end
  return kind, tonumber(taken)
end

local function keep(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, number(ms)) end
end

-- Writes the pool's marker, or removes the pool when nobody is left in it.
local function save_pool(kind, taken, ttl)
  if taken <= 0 then
    redis.call('DEL', K, P, E)
    return
  end
  local left = math.max(redis.call('PTTL', K), ttl, 1)
  redis.call('SET', K, 'pool ' .. kind .. ' ' .. number(taken), 'PX', number(left))
  keep(P, left)
  keep(E, left)
end

-- Records were lost, by an eviction or by hand, and with them how much was taken: it is what the
-- others have, once no term without a record is left.
local function recount()
  local kind, taken = room(), 0
  if kind == '-' or kind == 'x' then return end
  for _, owner in ipairs(redis.call('ZRANGE', E, '0', '-1')) do
    local record = redis.call('HGET', P, owner)
    if not record then return end
    taken = taken + tonumber(words(record, 9)[4])
  end
  save_pool(kind, taken, 0)
end

-- Takes one out of the pool. True if it was in there.
local function leave_pool(owner)
  local ended = redis.call('ZREM', E, owner) == 1
  local record = redis.call('HGET', P, owner)
  if not record then
    if ended then recount() end
    return false
  end
  local kind, taken = room()
  redis.call('HDEL', P, owner)
  if kind == 's' or kind == 'p' then
    save_pool(kind, taken - tonumber(words(record, 9)[4]), 0)
  end
  return true
end

local function drop_ended()
  local kind = room()
  if kind == '-' or kind == 'x' then
    -- A pool whose marker was taken away by force or by another client is no pool.
    redis.call('DEL', P, E)
  else
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', E, '-inf', number(now))) do
      leave_pool(owner)
    end
  end
end

-- The first in line who still waits: owner and its record. Ghosts and the ended are dropped.
local function head()
  while true do
    local owner = redis.call('LINDEX', Q, '0')
    if not owner then return nil end
    local record = redis.call('HGET', W, owner)
    if record then
      record = words(record, 10)
      if tonumber(record[1]) > now then return owner, record end
      redis.call('HDEL', W, owner)
    end
    redis.call('LPOP', Q)
  end
end

local function admits(kind, taken, w)
  if w[3] == 'x' then return kind == '-' end
  if w[3] == 's' then return kind == '-' or kind == 's' end
  return (kind == '-' or kind == 'p') and taken + tonumber(w[4]) <= tonumber(w[5])
end

-- Gives the lock to the one with this record. On a quorum, its token has a floor.
local function grant(owner, w, floor)
  local token, ttl = mint(now, floor), tonumber(w[6])
  if w[3] == 'x' then
    local mark = redis.call('EXISTS', Q) == 1 and '!' or ' '
    local value = table.concat({token, number(now), w[8], w[9], w[10]}, ' ')
    redis.call('SET', K, owner .. mark .. value, 'PX', w[6])
  else
    local kind, taken = room()
    local record = {token, number(now), w[3], w[4], w[5], w[6], w[8], w[9], w[10]}
    redis.call('HSET', P, owner, table.concat(record, ' '))
    redis.call('ZADD', E, number(now + ttl), owner)
    save_pool(w[3], taken + tonumber(w[4]), ttl)
  end
  return token
end

-- Too many ghosts: writes the line anew. Each ghost pays for it once.
local function sweep()
  local length = redis.call('LLEN', Q)
  if length <= 2 * redis.call('HLEN', W) + 64 then return end
  local line = redis.call('LRANGE', Q, '0', '-1')
  local left = redis.call('PTTL', Q)
  redis.call('DEL', Q)
  for _, owner in ipairs(line) do
    if redis.call('HEXISTS', W, owner) == 1 then redis.call('RPUSH', Q, owner) end
  end
  if left > 0 then redis.call('PEXPIRE', Q, number(left)) end
end

-- Somebody waits: tells the holder's release to look. A foreign holder's value is left alone.
local function mark()
  local start = redis.call('GETRANGE', K, '0', '32')
  if #start == 33 and string.find(start, '^%x+ $') then redis.call('SETRANGE', K, '32', '!') end
end

-- What `owner` has now: its token and the start of its term in ms, or nil.
local function held(owner)
  local value = redis.call('GET', K)
  if not value then return nil end
  if string.sub(value, 1, 32) == owner then
    local v = words(string.sub(value, 34), 2)
    return v[1], v[2], 'x'
  end
  if string.sub(value, 1, 5) ~= 'pool ' then return nil end
  local ends = redis.call('ZSCORE', E, owner)
  -- Whose record was lost does not hold any more.
  local record = redis.call('HGET', P, owner)
  if record and ends and tonumber(ends) > now then
    record = words(record, 9)
    return record[1], record[2], record[3]
  end
  return nil
end

-- How long until a holder's term ends that may be in the way, in ms; -1 if nobody holds.
local function obstacle()
  local first = room() == 'x' and {} or redis.call('ZRANGE', E, '0', '0', 'WITHSCORES')
  if first[2] then return math.max(tonumber(first[2]) - now, 1) end
  return math.max(redis.call('PTTL', K), -1)
end

--@line
