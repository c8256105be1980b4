-- Claims a lock in the layout of Redisson.
-- KEYS  1 lock (hash)  2 token (string)  3 note of an exclusive holder (string)  4 timer of this claim as a
--       reader (string, its value is the note)  5 queue of Redisson's fair lock (list)  6 its time-outs (zset)
--       7 channel of plain locks
-- ARGV  1 holder  2 ttl ms  3 'x' or 's'  4 '<pid> <host> <label>'  5 'fenced', or '' for no tokens
-- Returns 'granted <token>' | 'busy <ms until the lock ends, or -1> <lock | reader | writer: what holds it, and so
--         which channels say that it is free>'
--         | 'foreign': something else has the lock's name
-- Invariants: a claim that is not granted changes no hold and no other claim's place, but it removes waiters of a
-- fair lock and readers of its own id that are gone. Every key of a lock has a TTL but the token.
-- An exclusive hold is the hash of a plain lock with the field 'mode' besides: plain locks and read-write locks
-- of Redisson both find it taken.
local K, call = KEYS[1], redis.call
local holder, ttl = ARGV[1], ARGV[2]

--@layout
--@fair

local function token()
  return ARGV[5] == '' and '-' or string.format('%.0f', call('INCR', KEYS[2]))
end

local function note(token)
  local time = call('TIME')
  local ms = time[1] .. string.sub(string.sub('00000' .. time[2], -6), 1, 3)
  return holder .. ' ' .. token .. ' ' .. ms .. ' ' .. ARGV[4]
end

-- The term of the lock does not end before that of this reader.
local function outlast()
  if call('PTTL', K) < tonumber(ttl) then call('PEXPIRE', K, ttl) end
end

-- One command tells that the lock is free and that no waiter of a fair lock is before this claim.
local alone = call('EXISTS', K, KEYS[5]) == 0
local now = alone and 'none' or shape()
if not now then return 'foreign' end
if now ~= 'none' and call('HEXISTS', K, holder) == 1 then
  local kept
  if now == 'read' then
    kept = call('GET', KEYS[4])
    if kept then
      call('PEXPIRE', KEYS[4], ttl)
      outlast()
    else
      -- The term of this reader has ended, and others keep the lock: this is a new claim.
      call('HDEL', K, holder)
      if call('HLEN', K) == 1 then
        call('DEL', K)
        now = 'none'
      end
    end
  else
    kept = call('GET', KEYS[3])
    call('PEXPIRE', K, ttl)
    call('PEXPIRE', KEYS[3], ttl)
    -- A note that was deleted is written anew.
    if not kept or string.sub(kept, 1, #holder) ~= holder then
      kept = note(token())
      call('SET', KEYS[3], kept, 'PX', ttl)
    end
  end
  if kept then return 'granted ' .. string.match(kept, '^%S+ (%S+)') end
end
if now == 'none' and not alone then
  local ahead = fair_ahead()
  if ahead then return 'busy ' .. ahead .. ' lock' end
end
if now == 'none' or now == 'read' and ARGV[3] == 's' then
  local token = token()
  if ARGV[3] == 'x' then
    call('HSET', K, holder, '1', 'mode', 'write')
    call('PEXPIRE', K, ttl)
    call('SET', KEYS[3], note(token), 'PX', ttl)
  else
    call('HSET', K, 'mode', 'read', holder, '1')
    outlast()
    call('SET', KEYS[4], note(token), 'PX', ttl)
  end
  return 'granted ' .. token
end
return 'busy ' .. call('PTTL', K) .. (now == 'lock' and ' lock' or now == 'read' and ' reader' or ' writer')
