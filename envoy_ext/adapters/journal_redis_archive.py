"""What a Redis journal has kept, and how it goes: the scripts of `ports.Archive`."""

from typing import Final

from envoy_ext.adapters.journal_redis_scripts import build_script

FORGET: Final = build_script(
    "forget",
    """
local before, limit, by = unpack(ARGV, 2)
local last = call('HGET', journal, 'forgot')
local same, count = string.match(last or '', '^(%S+) (%d+)$')
if same == by then return tonumber(count) end
call('ZCARD', begun); call('ZCARD', created); call('HLEN', keys); call('HLEN', uses)
call('ZCARD', jobs); call('ZCARD', answered); call('HLEN', job_keys)
local found = call('ZRANGE', ended_at, '-inf', '(' .. before, 'BYSCORE', 'LIMIT', 0, limit)
local function unlink_from_key(id, digest, older, newer)
  if newer then
    if older then call('HSET', op_of(newer), 'older', older) else call('HDEL', op_of(newer), 'older') end
  elseif older then
    call('HSET', keys, digest, older)
  else
    call('HDEL', keys, digest)
  end
  if older then
    if newer then call('HSET', op_of(older), 'newer', newer) else call('HDEL', op_of(older), 'newer') end
  end
end
local function forget_job(id)
  local digest = call('HGET', job_of(id), 'key')
  call('ZREM', jobs, id)
  call('ZREM', answered, id)
  call('DEL', job_of(id))
  if digest then call('HDEL', job_keys, digest) end
end
local function forget_operation(id)
  local digest, older, newer, ledger = unpack(call('HMGET', op_of(id), 'key', 'older', 'newer', 'ledger'))
  call('ZREM', begun, id)
  call('ZREM', created, id)
  call('DEL', op_of(id), records_of(id))
  if digest then unlink_from_key(id, digest, older, newer) end
  if ledger then leave_ledger(ledger) else forget_unused(id) end
end
for _, member in ipairs(found) do
  local id = string.sub(member, 18)
  call('ZREM', ended_at, member)
  if string.sub(member, 1, 1) == 'j' then forget_job(id) else forget_operation(id) end
end
if #found > 0 then call('HSET', journal, 'forgot', by .. ' ' .. #found) end
return #found
""",
)
"""The unix time before which they ended, how many, and a name of this call: the same one again removes no
more. The first write is one that a full memory does not refuse: forgetting is what helps there."""

FORGET_RESULTS: Final = build_script(
    "forget_results",
    """
local before, limit, by = unpack(ARGV, 2)
local last = call('HGET', journal, 'forgot_results')
local same, count = string.match(last or '', '^(%S+) (%d+)$')
if same == by then return tonumber(count) end
local found = call('ZRANGE', answered, '-inf', '(' .. before, 'BYSCORE', 'LIMIT', 0, limit)
for _, id in ipairs(found) do
  call('ZREM', answered, id)
  for place = 1, tonumber(call('HGET', job_of(id), 'runs') or '0') do
    call('HDEL', op_of(call('HGET', job_of(id), 'run ' .. place)), 'answer')
  end
end
if #found > 0 then call('HSET', journal, 'forgot_results', by .. ' ' .. #found) end
return #found
""",
)
"""The unix time before which the jobs ended, how many, and a name of this call."""

SINCE: Final = build_script(
    "list_since",
    """
local at, after, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
local page, skipped = {}, 0
while #page < limit do
  local some = call('ZRANGE', created, at, '+inf', 'BYSCORE', 'LIMIT', skipped, limit, 'WITHSCORES')
  for place = 1, #some, 2 do
    skipped = skipped + 1
    if tonumber(some[place + 1]) > tonumber(at) or some[place] > after then
      page[#page + 1] = read_records(some[place])
      if #page == limit then break end
    end
  end
  if #some < 2 * limit then break end
end
return page
""",
)
"""The unix time of the begin to start with, the id to start behind at that time, and how many."""

COUNT: Final = build_script("count", "return call('ZCARD', begun)")
"""How many operations there are."""
