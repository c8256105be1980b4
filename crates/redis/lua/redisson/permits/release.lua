-- Gives the permits of a claim back.
-- KEYS  1 counter  2 terms  3 channel  4 note
-- ARGV  1 owner
-- Returns 1 if the claim held permits, 0 if not.
--@pool

if not pool() then return 0 end
local first = call('ZSCORE', TERMS, permit(ARGV[1], 1))
if not first then return 0 end
local held = tonumber(first) > server_ms()
give_back(take_out(ARGV[1]))
call('DEL', KEYS[4])
return held and 1 or 0
