-- Mints the next token of the slot, as text. Composed into every script that grants.
-- Expects the local T. `ms` is the server's time; `floor`, on a quorum, the least acceptable token.
-- Invariant: every token is above the last one and not below the server's time, so that tokens keep rising
-- when a failover or a restart loses the last increments.
--
-- Every number goes to a command as text. Redis 7.2.0 to 7.2.4 and Valkey 7.2.5 print a Lua number
-- that ends in zeros as 1.8379184e+15, and INCR refuses such a counter from then on. Text comes from
-- %.0f, and not from %d, which is 32 bits wide on some servers.
local function mint(ms, floor)
  local least = ms * 1024
  if floor and floor > least then least = floor end
  local token = redis.pcall('INCR', T)
  if type(token) == 'number' then
    -- Above 2^53 not every integer is a Lua number.
    if token >= 9007199254740992 then return redis.call('GET', T) end
    if token >= least then return string.format('%.0f', token) end
  elseif string.find(token.err, 'not an integer', 1, true) then
    -- The counter is damaged. The next token is above what can still be read of it; otherwise the counter
    -- starts at the server's time again, as if it were lost.
    local stored = tonumber(redis.call('GET', T)) or 0
    -- A value that no counter can hold is left to an operator: this raises the error.
    if stored >= 4611686018427387904 then redis.call('INCR', T) end
    if stored >= least then
      -- The least integer above it, or above 2^53 the next Lua number.
      least = math.max(math.floor(stored) + 1, stored * (1 + 2 ^ -52))
    end
  else
    redis.call('INCR', T)
  end
  local text = string.format('%.0f', least)
  redis.call('SET', T, text)
  return text
end
