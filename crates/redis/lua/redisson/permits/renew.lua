-- Restarts the terms of a claim's permits.
-- KEYS  1 counter  2 terms  3 channel  4 note
-- ARGV  1 owner  2 ttl ms  3 how many permits
-- Returns 1 if the claim holds all of them; 0 if not, and then it has none.
--@pool

if not pool() then return 0 end
local now, count = server_ms(), tonumber(ARGV[3])
if holds(ARGV[1], count, now) then
  set_terms(ARGV[1], count, now, tonumber(ARGV[2]))
  call('PEXPIRE', KEYS[4], ARGV[2])
  return 1
end
give_back(take_out(ARGV[1]))
return 0
