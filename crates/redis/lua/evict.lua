-- Takes a lock away from the owner seen, advances the token, and records the order.
-- KEYS  K, Q, W, P, E, T, A (list: audit records)
-- ARGV  1 owner, or the whole value of a foreign holder  2 audit record  3 the value, where the
--       first only spells it
-- Returns 1 if the owner held the lock, 0 if not.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]

--@mint
--@engine

local value = redis.call('GET', K)
local mine = value and (value == owner or value == ARGV[3] or (#owner == 32 and string.sub(value, 1, 32) == owner))
local released = 0
-- A pool without records has nobody in it who could leave.
if mine and (room() == 'x' or redis.call('EXISTS', P) == 0) then
  redis.call('DEL', K)
  released = 1
elseif held(owner) then
  leave_pool(owner)
  released = 1
end
if released == 1 then
  mint(now)
  redis.call('LPUSH', KEYS[7], ARGV[2])
  redis.call('LTRIM', KEYS[7], '0', '999')
end
-- It may come back, at the end of the line: nothing of its old place may be left.
if redis.call('HDEL', W, owner) == 1 then redis.call('LREM', Q, '0', owner) end
admit(nil)
return released
