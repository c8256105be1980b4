-- Lets a script go on only if its token is current; composed in front of the script that writes.
-- KEYS  1 the record of the highest token, a string (in the hash slot of the data)
-- ARGV  1 the token, in decimal
-- Returns 'stale <newest>' instead of what the script returns, if a higher token was seen. Otherwise the
-- token is recorded and the script runs, in one atomic step.
--
-- Tokens are compared as text of digits: above 2^53 a Lua number cannot hold every integer.
do
  local newest, token = redis.call('GET', KEYS[1]), ARGV[1]
  if not string.find(token, '^[1-9]%d*$') and token ~= '0' then
    return redis.error_reply('ERR the token is not a decimal number')
  end
  if newest then
    if not string.find(newest, '^%d+$') then
      return redis.error_reply('ERR the record of the highest token is damaged')
    end
    if #newest > #token or #newest == #token and newest > token then return 'stale ' .. newest end
  end
  if newest ~= token then redis.call('SET', KEYS[1], token) end
end
