-- Claims a lock, and queues the claim if it must wait.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner  2 kind: 'x 0 0', 's <take> 0' or 'p <take> <of>'  3 ttl ms
--       4 '<pid> <host> <label>'; and, to queue:  5 ms that the place lasts  6 inbox channel
-- Returns 'granted <token>' | 'queued <ms until the obstacle ends, -1, or 0: refresh at once> <server
-- time us>' | 'busy' | 'more': call again, expired holders are left to remove
-- Invariant: a claim is in the queue at most once, and never both in the queue and a holder.
--
-- A reader of a free lock takes five calls: GET K, EXISTS (does a claim wait?), TIME and INCR (its token), SET K.
-- To queue behind a writer takes six calls: GET K (is it held alone?), TIME (when the place ends),
-- ZRANGE (the last ticket), HSETNX (the record, and whether the claim is new), ZADD (the place), PTTL
-- (does the line last?). The first in line also sets the line's end and asks when the holder's is.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner, kind, place_ms = ARGV[1], ARGV[2], tonumber(ARGV[5] or '0')
local value = redis.call('GET', K)

--@mint

-- A reader of a free lock: alone it needs no pool.
if not value and string.sub(kind, 1, 1) == 's' and redis.call('EXISTS', Q) == 0 then
  local t = redis.call('TIME')
  local token = mint(t[1] * 1000 + (t[2] - t[2] % 1000) / 1000)
  redis.call('SET', K, owner .. 's' .. token .. ' - ' .. ARGV[4], 'PX', ARGV[3])
  return 'granted ' .. token
end

-- Another claim holds the lock exclusively: nothing can be granted.
if value and string.sub(value, 1, 5) ~= 'pool ' and string.sub(value, 33, 33) ~= 's'
  and string.sub(value, 1, 32) ~= owner then
  if place_ms == 0 then return 'busy' end
  local call = redis.call
  local time = call('TIME')
  local micros = string.sub('00000' .. time[2], -6)
  local us, ms = time[1] .. micros, time[1] .. string.sub(micros, 1, 3)
  local record = string.format('%.0f', ms + place_ms) .. ' ' .. ms .. ' ' .. kind .. ' ' .. ARGV[3]
    .. ' ' .. ARGV[6] .. ' ' .. ARGV[4]
  local last = call('ZRANGE', Q, '-1', '-1', 'WITHSCORES')
  if call('HSETNX', W, owner, record) == 1 then
    local ticket = us
    -- The clock may have been set back.
    if last[2] and tonumber(last[2]) >= tonumber(us) then
      ticket = string.format('%.0f', tonumber(last[2]) + 1)
    end
    call('ZADD', Q, ticket, owner)
    if not last[1] or call('PTTL', W) < place_ms then
      local lease = string.format('%.0f', 2 * place_ms)
      call('PEXPIRE', W, lease)
      call('PEXPIRE', Q, lease)
    end
    -- Marks the holder's value: its release has to look at the queue. A foreign value is left alone.
    if string.sub(value, 33, 33) == ' ' and string.find(string.sub(value, 1, 33), '^%x+ $') then
      call('SETRANGE', K, '32', '!')
    end
    local again = last[1] and -1 or call('PTTL', K)
    return string.format('queued %.0f ', again) .. us
  end
end

--@engine

local ttl = tonumber(ARGV[3])

-- The owner holds already: a repeated call. The term restarts.
local token, as = held(owner)
if token then
  extend(owner, as, ttl)
  return 'granted ' .. token
end

local more = drop_ended(owner)
local lease = place_ms > 0 and place_ms or 1000
local record = {number(now + lease), number(now), kind, ARGV[3], ARGV[6] or '-', ARGV[4]}
local last = tail()
if not last[1] then
  local w, holders, taken = words(table.concat(record, ' '), 10), room()
  if admits(holders, taken, w) then
    local one = {owner = owner, w = w, term = ttl}
    grant({one})
    return 'granted ' .. one.token
  end
end
local before = call('HGET', W, owner)
before = before and words(before, 3)
-- A claim whose place has expired, or was lost, joins again.
if before and tonumber(before[1]) > now and call('ZSCORE', Q, owner) then
  record[2] = before[2]
else
  join(owner, last)
end
call('HSET', W, owner, table.concat(record, ' '))
mark()
keep_line(lease)

more = admit(owner) or more

token = held(owner)
if token then
  if more then hand_on() end
  return 'granted ' .. token
end

if place_ms == 0 then
  drop({owner})
  return more and 'more' or 'busy'
end
local again = -1
if more then
  again = 0
elseif call('ZRANGE', Q, '0', '0')[1] == owner then
  again = obstacle()
end
return 'queued ' .. number(again) .. ' ' .. us
