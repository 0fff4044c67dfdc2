/**
 * When Bots that run by themselves run next. Any worker may plan: a row is locked by one of them, and
 * the occurrence it leaves behind has Bot and time as its key, so none is run by two.
 */

import {
  type DueSchedule,
  dueSchedules,
  type Plan,
  readSchedule,
  savePlans,
} from '../../../shared/bots/schedules.ts'
import {
  countOccurrences,
  lastOccurrence,
  nextOccurrence,
  type Schedule,
} from '../../../shared/fhir/schedule.ts'
import type { Services } from '../../../shared/services.ts'

/** An occurrence that was missed longer ago is not made up for. */
const MADE_UP_MS = 3_600_000
const AT_ONCE = 200

export interface Planned extends Plan {
  readonly row: DueSchedule
  /** The occurrence that does not run, as the run before it goes on. */
  readonly overlapped: Date | undefined
  /** Occurrences that were missed and are not made up for. */
  readonly missed: number
}

/** Plans what is due by `now`; true: there may be more. */
export async function planDue(
  { database }: Pick<Services, 'database'>,
  now: Date,
): Promise<{ readonly plans: readonly Planned[]; readonly isCut: boolean }> {
  return await database.transaction(async (connection) => {
    const rows = await dueSchedules(connection, now, AT_ONCE)
    const plans = rows.map((row) => planOf(row, now))
    if (plans.length > 0) await savePlans(connection, plans, now)
    return { plans, isCut: rows.length === AT_ONCE }
  })
}

/** The last one of several missed occurrences runs, unless it is too old. */
export function planOf(row: DueSchedule, now: Date): Planned {
  const { project, id, since } = row
  const schedule = readSchedule(row.bot)
  const nothing = { project, id, row, fired: undefined, overlapped: undefined, missed: 0 }
  if (schedule === undefined) return { ...nothing, since, due: undefined }
  const next = nextOccurrence(schedule, since)
  if (next === undefined || next > now) return { ...nothing, since, due: next }
  const last = lastOccurrence(schedule, now) ?? next
  const due = nextOccurrence(schedule, last)
  const missed = countOccurrences(schedule, since, last) - 1
  if (now.getTime() - last.getTime() >= MADE_UP_MS) {
    return { ...nothing, since: last, due, missed: missed + 1 }
  }
  return { ...nothing, since: last, due, missed, ...start(row, schedule, last) }
}

function start(
  { isRunning }: DueSchedule,
  { overlaps }: Schedule,
  time: Date,
): Pick<Planned, 'fired' | 'overlapped'> {
  const isHeld = isRunning && !overlaps
  return isHeld ? { fired: undefined, overlapped: time } : { fired: time, overlapped: undefined }
}
