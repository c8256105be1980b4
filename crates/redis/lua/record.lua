-- Adds a record to a lock's list of what operators did to it.
-- KEYS  A (list: audit records)
-- ARGV  1 audit record
-- Returns 1.
--@audit

add_audit_record(KEYS[1], ARGV[1])
return 1
