import t from 'tap'
import type { Resource } from '../../../shared/fhir/resource.ts'
import { MOST_COUNTED, nextOccurrence, parseSchedule } from '../../../shared/fhir/schedule.ts'
import { planOccurrence } from '../../../worker/bots/run-schedules.ts'

const BASE = 'http://localhost:8103/fhir/StructureDefinition/'
const zone = (valueString: string) => ({ url: `${BASE}bot-cron-timezone`, valueString })
const overlap = (valueCode: string) => ({ url: `${BASE}bot-cron-overlap`, valueCode })

function aBot(fields: Readonly<Record<string, unknown>>): Resource {
  return { resourceType: 'Bot', id: '7c0b3f9e-8c1c-4f3e-9d63-0f1c2c6d8e11', ...fields }
}

function aRow(fields: Readonly<Record<string, unknown>>) {
  const bot = aBot(fields)
  return { project: 2, projectId: 'p', id: bot.id ?? '', bot, isRunning: false, hasBegun: false }
}

function refusal(fields: Readonly<Record<string, unknown>>): unknown {
  try {
    return parseSchedule(aBot(fields))
  } catch (error) {
    return error
  }
}

function refusedAt(expression: string): object {
  return { status: 400, outcome: { issue: [{ expression: [expression] }] } }
}

function times(fields: Readonly<Record<string, unknown>>, from: string, count: number): string[] {
  const schedule = parseSchedule(aBot(fields))
  const found: string[] = []
  let at: Date | undefined = new Date(from)
  while (schedule !== undefined && at !== undefined && found.length < count) {
    at = nextOccurrence(schedule, at)
    if (at !== undefined) found.push(at.toISOString().slice(0, 16))
  }
  return found
}

const START = '2026-03-27T22:59:30Z'

for (const [cronString, expected] of [
  ['* * * * *', ['2026-03-27T23:00', '2026-03-27T23:01']],
  ['*/15 * * * *', ['2026-03-27T23:00', '2026-03-27T23:15']],
  ['0 9-17/4 * * MON-FRI', ['2026-03-30T09:00', '2026-03-30T13:00']],
  ['30 6 1,15 * *', ['2026-04-01T06:30', '2026-04-15T06:30']],
  ['0 0 29 FEB *', ['2028-02-29T00:00', '2032-02-29T00:00']],
  ['0 0 13 * 5', ['2026-04-03T00:00', '2026-04-10T00:00']],
  ['0 12 * * 7', ['2026-03-29T12:00', '2026-04-05T12:00']],
] as const) {
  t.same(times({ cronString }, START, 2), expected, cronString)
}

t.test('follows daylight saving time of a time zone', async (t) => {
  const fields = { cronString: '30 7 * * *', extension: [zone('Europe/Berlin')] }
  t.same(times(fields, START, 3), ['2026-03-28T06:30', '2026-03-29T05:30', '2026-03-30T05:30'])
})

for (const [repeat, cron] of [
  [{}, '0 */24 * * *'],
  [{ period: 1 }, '0 */24 * * *'],
  [{ period: 6 }, '0 */4 * * *'],
  [{ period: 24, dayOfWeek: ['mon', 'fri'] }, '0 */1 * * 1,5'],
  [{ period: 30 }, '*/48 * * * *'],
  [{ period: 60 }, '0 */1 * * *'],
  [{ period: 0.5 }, '0 */24 * * *'],
] as const) {
  const found = parseSchedule(aBot({ cronTiming: { repeat } }))
  t.equal(found?.cron, cron, `cronTiming ${JSON.stringify(repeat)}`)
}

t.test('leaves the Bot without a schedule for an empty cronTiming', async (t) => {
  t.equal(parseSchedule(aBot({ cronTiming: { event: ['2026-01-01'] } })), undefined)
  t.equal(parseSchedule(aBot({ cronTiming: { repeat: { period: 0 } } })), undefined)
})

for (const cronString of [
  '',
  '* * * *',
  '* * * * * *',
  '@daily',
  '60 * * * *',
  '* 24 * * *',
  '0 0 31 2 *',
  '0 0 31 4,6 *',
  '0 0 L * *',
  '* * * * 5L',
  '* * * * 1#2',
  'H * * * *',
  '*/0 * * * *',
  '5-1 * * * *',
  '1,,2 * * * *',
  'every minute of the day',
]) {
  t.match(refusal({ cronString }), refusedAt('Bot.cronString'), `rejects "${cronString}"`)
}

t.test('rejects an unknown zone or overlap rule with its path', async (t) => {
  for (const extension of [zone('Nowhere/Land'), zone('+01:00'), overlap('maybe')]) {
    const found = refusal({ cronString: '* * * * *', extension: [{}, extension] })
    t.match(found, refusedAt('Bot.extension[1]'))
  }
})

t.test('runs the last missed occurrence if it is less than an hour old', async (t) => {
  const row = aRow({ cronString: '0 * * * *' })
  const since = new Date('2026-05-01T00:00:00Z')
  const plan = (now: string, changes = {}) =>
    planOccurrence({ ...row, since, ...changes }, new Date(now))

  const due = new Date('2026-05-01T01:00:00Z')
  t.match(plan('2026-05-01T00:59:59.999Z'), { fired: undefined, since, due, missed: 0 })
  t.match(plan('2026-05-01T01:00:00.000Z'), { fired: due, since: due, missed: 0 })
  const last = new Date('2026-05-01T04:00:00Z')
  const next = new Date('2026-05-01T05:00:00Z')
  t.match(plan('2026-05-01T04:59:59Z'), { fired: last, since: last, due: next, missed: 3 })

  const daily = aBot({ cronString: '0 0 * * *' })
  const old = plan('2026-05-02T01:00:00Z', { bot: daily })
  t.match(old, { fired: undefined, missed: 1, due: new Date('2026-05-03T00:00:00Z') })
  const fresh = plan('2026-05-02T00:59:59Z', { bot: daily })
  t.match(fresh, { fired: new Date('2026-05-02T00:00:00Z'), missed: 0 })
})

t.test('runs an occurrence at a time that a clock change skips', async (t) => {
  for (const [cronString, name, before, due, next] of [
    ['30 2 * * *', 'Europe/Berlin', '2026-03-28T01:30', '2026-03-29T01:30', '2026-03-30T00:30'],
    ['0 2 * * *', 'America/New_York', '2026-03-07T07:00', '2026-03-08T07:00', '2026-03-09T06:00'],
  ] as const) {
    const at = (minute: string) => new Date(`${minute}:00Z`)
    const row = aRow({ cronString, extension: [zone(name)] })
    t.match(planOccurrence({ ...row, since: at(before) }, at(due)), {
      fired: at(due),
      since: at(due),
      due: at(next),
      missed: 0,
    })
  }
})

t.test('counts a long outage up to a limit', async (t) => {
  const row = aRow({ cronString: '* * * * *' })
  const plan = planOccurrence(
    { ...row, since: new Date('2026-01-01T00:00:00Z') },
    new Date('2026-02-01T00:00:30Z'),
  )
  t.match(plan, { fired: new Date('2026-02-01T00:00:00Z'), missed: MOST_COUNTED - 1 })
})

t.test(
  'skips an occurrence while the previous run continues, unless the Bot allows overlaps',
  async (t) => {
    const now = new Date('2026-05-01T00:01:00Z')
    const row = (bot: Resource) => {
      const since = new Date('2026-05-01T00:00:00Z')
      return {
        project: 2,
        projectId: 'p',
        id: bot.id ?? '',
        since,
        bot,
        isRunning: true,
        hasBegun: true,
      }
    }
    const held = planOccurrence(row(aBot({ cronString: '* * * * *' })), now)
    t.match(held, { fired: undefined, overlapped: now, since: now })
    const bot = aBot({ cronString: '* * * * *', extension: [overlap('allow')] })
    t.match(planOccurrence(row(bot), now), { fired: now, overlapped: undefined })
  },
)

t.test('treats an unreadable schedule as never due', async (t) => {
  const row = {
    project: 2,
    projectId: 'p',
    id: 'x',
    since: new Date(),
    isRunning: false,
    hasBegun: false,
  }
  const plan = planOccurrence({ ...row, bot: aBot({ cronString: 'hourly' }) }, new Date())
  t.match(plan, { fired: undefined, due: undefined })
})
