-- Takes the permits of one holder by force, and records it.
-- KEYS  1 counter  2 terms  3 channel  4 token  5 note  6 audit records (list)
-- ARGV  1 owner of ours  2 member of another client  3 audit record  4 'fenced' or ''
-- Returns 1 if the holder was there, 0 if not.
-- Invariant: the next token is above every earlier one.
--@pool
--@audit

if not pool() then return 0 end
local count = take_out(ARGV[1]) + call('ZREM', TERMS, ARGV[2])
if count == 0 then return 0 end
give_back(count)
call('DEL', KEYS[5])
if ARGV[4] ~= '' then call('INCR', KEYS[4]) end
add_audit_record(KEYS[6], ARGV[3])
return 1
