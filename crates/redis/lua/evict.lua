-- Evicts the holder that an operator saw, advances the token, and records the eviction.
-- KEYS  K, Q, W, P, E, T, A (list: audit records)
-- ARGV  1 owner, or the whole value of a foreign holder  2 audit record  3 the raw value, where the
--       first is its spelling in digits
-- Returns 1 if the owner held the lock, 0 if not.
-- Invariant: nothing is evicted but the owner that was seen; the next token is above every earlier one.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]
local value = redis.call('GET', K)

--@mint
--@audit
--@engine

local mine = value and (value == owner or value == ARGV[3] or (#owner == 32 and string.sub(value, 1, 32) == owner))
local released = 0
-- A pool without records has no holder to remove: the whole lock is.
if mine and (room() == 'x' or call('EXISTS', P) == 0) then
  call('UNLINK', K)
  value, released = false, 1
elseif held(owner) then
  leave({owner})
  released = 1
end
if released == 1 then
  mint(now)
  add_audit_record(KEYS[7], ARGV[2])
end
-- The owner may claim again, at the end of the queue: nothing of its old place may be left.
drop({owner})
if admit(nil) then hand_on() end
return released
