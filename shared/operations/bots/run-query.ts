/** The query of `$runs`: outcome, period, and place in the list. */
import type { BotRunCursor, RunQuery } from '../../bots/run-records.ts'
import { badRequest } from '../../core/errors.ts'
import { readPeriod } from '../../request/parameters.ts'

const DEFAULT_COUNT = 20
export const MOST_RUNS = 100
/** A UUID, alone or as `urn:uuid:`. */
export const RUN_ID = /^(?:urn:uuid:)?([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/i

/** Errors: 400 with the parameter at fault. */
export function readRunSelection(query: URLSearchParams): Omit<RunQuery, 'bot' | 'project' | 'id'> {
  const since = readPeriod(query.get('since'), 'since')
  const until = readPeriod(query.get('until'), 'until')
  return {
    count: readCount(query.get('_count')),
    after: readRunCursor(query.get('_cursor')),
    isOk: readOutcome(query.get('status')),
    since: since && new Date(since.low),
    until: until && new Date(until.high),
  }
}

export function toRunCursor({ started, id }: BotRunCursor): string {
  return `${started.getTime()}-${id}`
}

function readRunCursor(cursor: string | null): BotRunCursor | undefined {
  if (cursor === null) return undefined
  const [, ms, id = ''] =
    /^(\d{1,13})-([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/.exec(cursor) ?? []
  if (ms === undefined) throw badRequest('Invalid cursor', '_cursor')
  return { started: new Date(Number(ms)), id }
}

function readCount(text: string | null): number {
  if (text === null) return DEFAULT_COUNT
  const wanted = /^\d{1,6}$/.test(text) ? Number(text) : 0
  if (wanted < 1)
    throw badRequest(`_count must be a whole number of at least 1, not ${text}`, '_count')
  return Math.min(wanted, MOST_RUNS)
}

function readOutcome(status: string | null): boolean | undefined {
  if (status === null) return undefined
  if (status === 'ok' || status === 'failed') return status === 'ok'
  throw badRequest('status must be ok or failed', 'status')
}
