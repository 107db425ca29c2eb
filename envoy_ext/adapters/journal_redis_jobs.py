"""The jobs of a Redis journal: the scripts that look and write, and the decision between them.

What becomes of a job is decided here, by the core's own functions, from what one script has read; another
writes the decision if nothing that it rests on has changed since, and otherwise it is made anew. Whether
there is room for another job is decided at the server: all gateways count together, and would overtake each
other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envoy_ext.adapters import job_codec
from envoy_ext.adapters.journal_redis_ledger import MOST_TRIES, Asking
from envoy_ext.adapters.journal_redis_scripts import (
    DONE,
    HELD,
    HELD_BY_JOB,
    SCHEMA_VERSION,
    SEAT_LOST,
    build_script,
)
from envoy_ext.adapters.journal_redis_text import encode
from envoy_ext.domain.errors import JournalUnavailable, NotOwner, SeatLost
from envoy_ext.domain.ids import OperationId, SeatId
from envoy_ext.domain.job import Job, RunState

FULL: Final = b"full"
"""There is no room; the counts follow."""

SUBMIT: Final = build_script(
    "submit_job",
    f"""
local id, digest, after, ledger, pool, bytes, most_jobs, most_bytes, body, request = unpack(ARGV, 2)
if call('HEXISTS', job_of(id), 'number') == 1 then return {{'{HELD_BY_JOB.decode()}', read_job(id)}} end
if digest ~= '' then
  local holder = call('HGET', job_keys, digest)
  if holder then return {{'{HELD_BY_JOB.decode()}', read_job(holder)}} end
  holder = call('HGET', keys, digest)
  if holder and ('=' .. holder) ~= after then return {{'{HELD.decode()}', read_records(holder)}} end
end
local count, used = unpack(call('HMGET', job_counts, 'jobs', 'bytes'))
count, used = tonumber(count or '0'), tonumber(used or '0')
if count >= tonumber(most_jobs) or used + tonumber(bytes) > tonumber(most_bytes) then
  return {{'{FULL.decode()}', call('HGETALL', job_counts)}}
end
call('ZCARD', jobs); call('ZCARD', jobs_in('queued')); call('HLEN', job_keys); call('HLEN', uses)
local number = call('HINCRBY', journal, 'jobs', 1)
if schema ~= '{SCHEMA_VERSION}' then call('HSET', journal, 'schema', {SCHEMA_VERSION}) end
call('HSET', job_of(id), 'number', number, 'body', body, 'version', 1, 'state', 'queued', 'pool', pool)
call('HSET', job_of(id), 'bytes', bytes, 'runs', 0, 'request', request)
call('ZADD', jobs, number, id)
call('ZADD', jobs_in('queued'), number, id)
call('HINCRBY', job_counts, 'jobs', 1)
call('HINCRBY', job_counts, 'bytes', bytes)
call('HINCRBY', job_counts, 'queued ' .. pool, 1)
if digest ~= '' then
  call('HSET', job_of(id), 'key', digest)
  call('HSET', job_keys, digest, id)
end
if ledger ~= id then
  call('HSET', job_of(id), 'ledger', ledger)
  call('HINCRBY', uses, ledger, 1)
end
return {{'{DONE.decode()}', read_job(id)}}
""",
)
"""id, digest ("" without a key), after ("" or "=" and an id), ledger, pool, bytes of the body, the bounds of
jobs and of bytes, the job, its request."""

_RUN: Final = """
local function read_run(id)
  local seq, ended = unpack(call('HMGET', op_of(id), 'seq', 'ended'))
  return not seq and 'none' or ended and 'over' or 'open'
end
"""

LOOK: Final = build_script(
    "look_at_job",
    _RUN
    + f"""
local id, seat = unpack(ARGV, 2)
if seat ~= '' and call('HEXISTS', seats, seat) == 0 then return {{'{SEAT_LOST.decode()}'}} end
local number, body, version, owner, runs = unpack(call('HMGET', job_of(id),
  'number', 'body', 'version', 'owner', 'runs'))
if not number then return {{}} end
local newest = call('HGET', job_of(id), 'run ' .. runs)
local there = owner and call('HEXISTS', seats, owner) or 0
return {{{{number, body}}, version, newest and read_run(newest) or 'none', there}}
""",
)
"""The id, and a seat that must be there ("" for none). Its number and body, its version, how far its newest
run has come, and whether its owner's seat is there."""

PUT: Final = build_script(
    "put_job",
    _RUN
    + f"""
local id, version, seat, far, body, state, owner, ends = unpack(ARGV, 2, 9)
local was, has, pool, bytes, number, ledger, runs = unpack(call('HMGET', job_of(id),
  'state', 'version', 'pool', 'bytes', 'number', 'ledger', 'runs'))
if has ~= version then return 'changed' end
if seat ~= '' and call('HEXISTS', seats, seat) == 0 then return '{SEAT_LOST.decode()}' end
local newest = call('HGET', job_of(id), 'run ' .. runs)
if (newest and read_run(newest) or 'none') ~= far then return 'changed' end
call('ZCARD', jobs_in('queued')); call('ZCARD', jobs_in('running')); call('HLEN', job_counts)
call('ZCARD', answered); call('ZCARD', ended_at); call('HLEN', uses)
call('HSET', job_of(id), 'version', version + 1, 'body', body, 'state', state, 'owner', owner)
call('HSET', job_of(id), 'runs', #ARGV - 9)
for place = 10, #ARGV do call('HSET', job_of(id), 'run ' .. (place - 9), ARGV[place]) end
if was ~= state then
  call('ZREM', jobs_in(was), id)
  if call('HINCRBY', job_counts, was .. ' ' .. pool, -1) == 0 then
    call('HDEL', job_counts, was .. ' ' .. pool)
  end
  if ends == '' then
    call('ZADD', jobs_in(state), number, id)
    call('HINCRBY', job_counts, state .. ' ' .. pool, 1)
  end
end
if ends ~= '' then
  call('HDEL', job_of(id), 'request')
  if call('HINCRBY', job_counts, 'jobs', -1) == 0 then call('HDEL', job_counts, 'jobs') end
  if call('HINCRBY', job_counts, 'bytes', -bytes) == 0 then call('HDEL', job_counts, 'bytes') end
  call('ZADD', answered, ends, id)
  call('ZADD', ended_at, ends, string.format('j%015d:%s', number, id))
  for place = 10, #ARGV do
    local run = ARGV[place]
    local seq, held = unpack(call('HMGET', op_of(run), 'seq', 'held'))
    if held then
      call('HDEL', op_of(run), 'held')
      call('ZADD', ended_at, held, string.format('%016d:%s', seq, run))
    end
  end
  if ledger then leave_ledger(ledger) end
end
return '{DONE.decode()}'
""",
)
"""id, version; a seat that must be there ("" for none), how far the newest run must have come; the job, its
state and its owner ("" for none), the time of its end ("" for none), its runs.

Done again it finds another version, and the decision that is made anew is the same. That an owner has no seat
need not be looked at again: none comes back."""

LIST: Final = build_script(
    "list_jobs",
    """
local among, after, limit = unpack(ARGV, 2)
local found = call('ZRANGE', base .. among, '(' .. after, '+inf', 'BYSCORE', 'LIMIT', 0, limit)
local page = {}
for place, id in ipairs(found) do page[place] = read_job(id) end
return page
""",
)
"""`jobs`, `jobs:queued` or `jobs:running`; the number to begin above, and how many."""

ORPHANED: Final = build_script(
    "orphaned_jobs",
    """
local limit = tonumber(ARGV[2])
local page = {}
for _, id in ipairs(call('ZRANGE', jobs_in('running'), '-inf', '+inf', 'BYSCORE')) do
  if #page >= limit then break end
  if call('HEXISTS', seats, call('HGET', job_of(id), 'owner')) == 0 then page[#page + 1] = read_job(id) end
end
return page
""",
)
"""How many."""

FIND: Final = build_script(
    "find_job",
    """
local id = call('HGET', job_keys, ARGV[2])
return id and read_job(id) or {}
""",
)
"""The digest of the key."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A job as it was read, and what a decision about it may rest on."""

    job: Job
    run: RunState
    owner_is_there: bool


async def change(
    read: Asking,
    write: Asking,
    job_id: OperationId,
    decide: Callable[[Looked], Job],
    *,
    seat: SeatId | None = None,
) -> Job:
    """Make one decision about a job and write it; `NotOwner` when it is not there.

    `seat`: the decision is void, `SeatLost`, unless that is there.
    """
    for _ in range(MOST_TRIES):
        found = await read(LOOK, encode(job_id), encode(seat or ""))
        if found == [SEAT_LOST]:
            raise SeatLost(f"{seat} has no seat")
        if not found:
            raise NotOwner(f"there is no job {job_id}")
        looked = Looked(read_job(found[0]), RunState(found[2].decode()), found[3] == 1)
        job = decide(looked)
        if job == looked.job:
            return job
        written = await write(
            PUT,
            encode(job_id),
            found[1],
            encode(seat or ""),
            found[2],
            job_codec.encode_job(job),
            job.state.value,
            encode(job.owner or ""),
            "" if job.end is None or looked.job.ended else repr(job.end.at),
            *(encode(run_id) for run_id in job.run_ids),
        )
        if written == SEAT_LOST:
            raise SeatLost(f"{seat} has no seat")
        if written == DONE:
            return job
    raise JournalUnavailable("a job was changed again and again by others")


def read_job(found: Sequence[bytes]) -> Job:
    """The job of a number and a body."""
    number, body = found
    return replace(job_codec.decode_job(body), number=int(number))
