-- The engine: what claim, refresh, release and evict share when a lock is contended or pooled. Composed
-- behind each script's fast path when the store connects, with line.lua or quorum/line.lua at its end;
-- never run by itself.
--
-- Expects these locals: K, Q, W, P, E, T (key names), value (what GET K returned) and mint (of
-- mint.lua).
--   K  string   the holder: "<owner><mark><token> <since> <pid> <host> <label>", or a foreign
--               value, or "pool <kind> <taken>" while shared or permit holders are in P. The mark
--               is a space, or ! if a claim may wait: a release without it need not look at the queue;
--               or s: a reader, alone, and no claim waits. Each script that comes here makes it a pool of one.
--               <since> may be -: then the token, which contains the time, tells
--   Q  zset     owner -> ticket. Tickets rise, so this is the order of arrival
--   W  hash     owner -> "<ends> <arrived> <kind> <take> <of> <ttl> <inbox> <pid> <host> <label>"
--   P  hash     owner -> "<token> <since> <kind> <take> <of> <ttl> <pid> <host> <label>"
--   E  zset     owner -> the end of its term
--   T  string   the last token of this slot
-- Times are the server's, in ms. Every number goes to a command as text: see mint.lua.
--
-- Invariants:
-- K exists exactly while the lock is held, so any SET NX client is excluded. Every key but T expires
-- when no client refreshes it.
-- The work of a run has a bound, whatever the length of the queue and the size of the pool: at most
-- 2 * BATCH claims are admitted, 4 * BATCH waiters looked at and 2 * BATCH ended holders removed. A
-- function that stops at a bound returns true, for "there is more", and a later call goes on.

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local us = string.format('%.0f', time[1] * 1000000 + time[2])
local BATCH = 128

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

-- Makes the holder in the value the only one of a pool of readers, for `ttl`.
local function pool_holder(ttl)
  local record = words(string.sub(value, 34), 3)
  local token, since = record[1], record[2]
  -- The token begins as the server's time.
  if since == '-' and token ~= '-' then since = number(math.floor(tonumber(token) / 1024)) end
  local owner = string.sub(value, 1, 32)
  -- Remains of an earlier pool are removed.
  call('UNLINK', P, E)
  call('HSET', P, owner, table.concat({token, since, 's 1 0', number(ttl), record[3]}, ' '))
  call('ZADD', E, number(now + ttl), owner)
  value = 'pool s 1'
  call('SET', K, value, 'PX', number(ttl))
  call('PEXPIRE', P, number(ttl))
  call('PEXPIRE', E, number(ttl))
end

-- A value of another client may look alike, and is left alone.
if value and string.sub(value, 33, 33) == 's' and string.find(value, '^%x+s[%d-]%d* %S+ ') then
  local left = call('PTTL', K)
  -- A value without an end was made by hand, and excludes all.
  if left > 0 then pool_holder(left) end
end

-- How the lock is held: kind ('-' not held, 'x', 's', 'p') and permits taken.
local function room()
  if not value then return '-', 0 end
  local kind, taken = string.match(value, '^pool ([sp]) (%d+)$')
  if not kind then return 'x', 0 end
  return kind, tonumber(taken)
end

-- Writes the pool's value, which lasts for `ttl` at least, or removes the pool if it is empty.
local function save_pool(kind, taken, ttl)
  if taken <= 0 then
    call('UNLINK', K, P, E)
    value = false
    return
  end
  value = 'pool ' .. kind .. ' ' .. number(taken)
  if ttl > 0 and ttl > call('PTTL', K) then
    call('SET', K, value, 'PX', number(ttl))
    call('PEXPIRE', P, number(ttl))
    call('PEXPIRE', E, number(ttl))
  else
    call('SET', K, value, 'KEEPTTL')
  end
end

-- Counts the permits taken again after records were lost, by an eviction or by hand. A reader takes one.
-- Permits are counted once no term without a record is left; in a pool that is too large to count in one
-- run they come back when it is empty.
local function recount()
  local kind = room()
  local holders = call('ZCARD', E)
  if kind == 's' or holders == 0 then return save_pool(kind, holders, 0) end
  if holders > 4 * BATCH then return end
  local taken = 0
  for _, record in ipairs(call('HMGET', P, unpack(call('ZRANGE', E, '0', '-1')))) do
    if not record then return end
    taken = taken + tonumber(words(record, 9)[4])
  end
  save_pool(kind, taken, 0)
end

-- Removes holders from the pool.
local function leave(owners)
  local kind, taken = room()
  -- A pool whose value was removed by force or by another client is no pool.
  if kind == '-' or kind == 'x' then return end
  local terms, records, freed = call('ZREM', E, unpack(owners)), 0, 0
  for _, record in ipairs(call('HMGET', P, unpack(owners))) do
    if record then
      records, freed = records + 1, freed + tonumber(string.match(record, '^%S+ %S+ %S+ (%d+)'))
    end
  end
  if records > 0 then
    call('HDEL', P, unpack(owners))
    save_pool(kind, taken - freed, 0)
  end
  if terms > records and value then recount() end
end

-- Removes expired holders. `me`, which claims the lock and does not hold it, is removed in any case: it
-- would be counted twice.
local function drop_ended(me)
  local kind = room()
  if kind == '-' or kind == 'x' then return false end
  local most = number(2 * BATCH)
  local ended = call('ZRANGEBYSCORE', E, '-inf', number(now), 'LIMIT', '0', most)
  if #ended > 0 then leave(ended) end
  if #ended < 2 * BATCH then return false end
  if me then leave({me}) end
  return true
end

local function admits(kind, taken, w)
  if w[3] == 'x' then return kind == '-' end
  if w[3] == 's' then return kind == '-' or kind == 's' end
  local take = tonumber(w[4])
  return (kind == '-' or kind == 'p') and take > 0 and taken + take <= tonumber(w[5])
end

-- Grants the lock to claims {owner, w = record, term = ms}: one exclusive claim, or several of one kind.
-- Each gets its token; on a quorum, tokens have a floor.
local function grant(claims, floor)
  local kind = claims[1].w[3]
  if kind == 'x' then
    local one = claims[1]
    one.token = mint(now, floor)
    local w = one.w
    value = table.concat({one.owner .. '!' .. one.token, number(now), w[8], w[9], w[10]}, ' ')
    call('SET', K, value, 'PX', number(one.term))
    return
  end
  local held_as, taken = room()
  -- Remains of an earlier pool are removed.
  if held_as == '-' then call('UNLINK', P, E) end
  local records, ends, longest = {}, {}, 0
  for _, one in ipairs(claims) do
    local w = one.w
    one.token = mint(now, floor)
    records[#records + 1] = one.owner
    local record = {one.token, number(now), kind, w[4], w[5], w[6], w[8], w[9], w[10]}
    records[#records + 1] = table.concat(record, ' ')
    ends[#ends + 1] = number(now + one.term)
    ends[#ends + 1] = one.owner
    taken, longest = taken + tonumber(w[4]), math.max(longest, one.term)
  end
  call('HSET', P, unpack(records))
  call('ZADD', E, unpack(ends))
  save_pool(kind, taken, longest)
end

-- The token of `owner` and how it holds, or nil.
local function held(owner)
  if not value then return nil end
  if string.sub(value, 1, 32) == owner then return words(string.sub(value, 34), 2)[1], 'x' end
  if room() == 'x' then return nil end
  local ends = call('ZSCORE', E, owner)
  -- A holder whose record was lost no longer holds.
  local record = call('HGET', P, owner)
  if record and ends and tonumber(ends) > now then
    record = words(record, 3)
    return record[1], 'pool'
  end
  return nil
end

-- Restarts the term of a holder. First the command that a server out of memory still carries out; then it
-- carries out the rest, too.
local function extend(owner, as, ttl)
  if as == 'x' then
    call('PEXPIRE', K, number(ttl))
    return
  end
  local left = call('PTTL', K)
  call('PEXPIRE', K, number(math.max(left, ttl)))
  call('ZADD', E, number(now + ttl), owner)
  if left < ttl then
    call('PEXPIRE', P, number(ttl))
    call('PEXPIRE', E, number(ttl))
  end
end

-- The last waiter and its ticket.
local function tail() return call('ZRANGE', Q, '-1', '-1', 'WITHSCORES') end

-- Adds a claim at the end of the queue, behind `last`. The clock may have been set back.
local function join(owner, last)
  local ticket = tonumber(us)
  if last[2] then ticket = math.max(ticket, tonumber(last[2]) + 1) end
  call('ZADD', Q, number(ticket), owner)
end

-- The queue lasts as long as any place in it: twice as long as needed, so that it is seldom extended.
local function keep_line(lease)
  if call('PTTL', W) < lease then
    call('PEXPIRE', W, number(2 * lease))
    call('PEXPIRE', Q, number(2 * lease))
  end
end

-- A claim waits: marks the holder's value, so that its release looks at the queue. A foreign value is
-- left alone.
local function mark()
  if value and #value > 32 and string.find(string.sub(value, 1, 33), '^%x+ $') then
    call('SETRANGE', K, '32', '!')
  end
end

-- Removes waiters from the queue.
local function drop(owners)
  if #owners == 0 then return end
  call('ZREM', Q, unpack(owners))
  call('HDEL', W, unpack(owners))
end

-- Milliseconds until the first term ends that may be in the way; -1 if the lock is free.
local function obstacle()
  local kind = room()
  local first = (kind == 's' or kind == 'p') and call('ZRANGE', E, '0', '0', 'WITHSCORES') or {}
  if first[2] then return math.max(tonumber(first[2]) - now, 1) end
  return value and math.max(call('PTTL', K), -1) or -1
end

--@line
