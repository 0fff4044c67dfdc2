/** Bot schedules: `cronString`, `cronTiming` and their extensions. */

import { type CronExpression, CronExpressionParser } from 'cron-parser'
import { attempt, badRequest, notSupported } from '../core/errors.ts'
import { parseCdsService } from './bot-cds.ts'
import { checkDeclarations } from './bot-declarations.ts'
import { type BotExtension, botExtension, checkBotExtensions } from './bot-extensions.ts'
import { checkLabels } from './bot-labels.ts'
import { parseBotTool } from './bot-tool.ts'
import { isObject, type Resource } from './resource.ts'

export interface Schedule {
  /** Five fields: minute, hour, day of month, month, day of week. */
  readonly cron: string
  readonly zone: string
  /** True when a run may start while the previous one is active. */
  readonly overlaps: boolean
}

/** Occurrences between two times are counted up to this limit. */
export const MOST_COUNTED = 1000

const NUMBERS = /^[\d*,/-]+$/
const NAMES = /^([a-z]{3}|[\d*,/-])+$/i
/** The library also accepts seconds, nicknames and symbols of other cron dialects. */
const FIELDS = [NUMBERS, NUMBERS, NUMBERS, NAMES, NAMES]
export const WEEKDAYS = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat']

/** Returns undefined for a Bot without a schedule. Errors: 400 with the element at fault. */
export function parseSchedule(bot: Resource): Schedule | undefined {
  const zone = extensionValue(bot, 'cron-timezone')
  const overlap = extensionValue(bot, 'cron-overlap')
  if (overlap !== undefined && overlap.value !== 'allow' && overlap.value !== 'skip') {
    throw badRequest('bot-cron-overlap must be allow or skip', overlap.expression)
  }
  if (zone !== undefined && !isZone(zone.value)) {
    throw badRequest('bot-cron-timezone must be an IANA time zone', zone.expression)
  }
  const text = typeof bot.cronString === 'string' ? bot.cronString.trim() : undefined
  const given = text === undefined ? undefined : checked(text, 'Bot.cronString')
  const cron = timingToCron(bot.cronTiming) ?? given
  if (cron === undefined) return undefined
  return { cron, zone: String(zone?.value ?? 'UTC'), overlaps: overlap?.value === 'allow' }
}

export function isSameSchedule(a: Schedule | undefined, b: Schedule | undefined): boolean {
  return a?.cron === b?.cron && a?.zone === b?.zone && a?.overlaps === b?.overlaps
}

/** Undefined also for dates that never occur, such as 31 June, for which the library throws. */
export function nextOccurrence(schedule: Schedule, after: Date): Date | undefined {
  return attempt(() => expressionFrom(schedule, after).next().toDate())
}

/** Returns the next `count` occurrences, fewer when the schedule ends. */
export function nextOccurrences(schedule: Schedule, after: Date, count: number): readonly Date[] {
  const found: Date[] = []
  let next = nextOccurrence(schedule, after)
  while (next !== undefined && found.length < count) {
    found.push(next)
    next = nextOccurrence(schedule, next)
  }
  return found
}

export function lastOccurrence(schedule: Schedule, now: Date): Date | undefined {
  // The library searches before the given second, so start with the next one.
  const from = new Date(Math.floor(now.getTime() / 1000) * 1000 + 1000)
  return attempt(() => expressionFrom(schedule, from).prev().toDate())
}

/** Counts occurrences after `after` up to and including `until`, at most MOST_COUNTED. */
export function countOccurrences(schedule: Schedule, after: Date, until: Date): number {
  const expression = expressionFrom(schedule, after)
  let count = 0
  while (count < MOST_COUNTED) {
    const next = attempt(() => expression.next().toDate())
    if (next === undefined || next > until) break
    count += 1
  }
  return count
}

function expressionFrom({ cron, zone }: Schedule, currentDate: Date): CronExpression {
  return CronExpressionParser.parse(cron, { tz: zone, currentDate })
}

function checked(cron: string, expression: string): string {
  const fields = cron.split(/\s+/)
  const isPlain = fields.length === 5 && FIELDS.every((pattern, i) => pattern.test(fields[i] ?? ''))
  if (!isPlain) {
    const why = 'must have five fields: minute, hour, day of month, month, day of week'
    throw badRequest(`cronString ${why}`, expression)
  }
  try {
    CronExpressionParser.parse(cron, { tz: 'UTC' }).next()
  } catch (error) {
    throw badRequest(`cronString: ${(error as Error).message}`, expression)
  }
  return cron
}

/** Reads `repeat.period` as times per day, as Medplum does, on `repeat.dayOfWeek` or daily. */
function timingToCron(timing: unknown): string | undefined {
  const repeat = isObject(timing) && isObject(timing.repeat) ? timing.repeat : undefined
  if (repeat === undefined) return undefined
  const times = repeat.period === undefined ? 1 : Number(repeat.period)
  if (!(times > 0)) return undefined
  const given = Array.isArray(repeat.dayOfWeek) ? repeat.dayOfWeek : []
  const days = given.map((day) => WEEKDAYS.indexOf(day)).filter((day) => day >= 0)
  const dayOfWeek = days.length === 0 ? '*' : days.join()
  if (times > 24 && times < 60) return `*/${Math.ceil(1440 / times)} * * * ${dayOfWeek}`
  return `0 */${Math.min(24, Math.ceil(24 / times))} * * ${dayOfWeek}`
}

const USED = new Set(['period', 'periodUnit', 'dayOfWeek'])
const PLAIN = new Set(['id', 'extension'])

/** Errors: 400 for a `cronTiming` of which the schedule would ignore a part, and for one without a schedule. */
export function checkTiming(timing: unknown): void {
  if (!isObject(timing)) return
  const path = 'Bot.cronTiming'
  const repeat = isObject(timing.repeat) ? timing.repeat : {}
  const ignored = [
    ...Object.keys(timing).filter((name) => name !== 'repeat' && !PLAIN.has(name)),
    ...Object.keys(repeat).flatMap((name) =>
      USED.has(name) || PLAIN.has(name) ? [] : [`repeat.${name}`],
    ),
  ]
  if (ignored[0] !== undefined) {
    throw notSupported(`${ignored[0]} is not supported; use cronString`, `${path}.${ignored[0]}`)
  }
  if (repeat.periodUnit !== undefined && repeat.periodUnit !== 'd') {
    const reason = 'period is the number of runs a day, so periodUnit must be d'
    throw badRequest(reason, `${path}.repeat.periodUnit`)
  }
  if (timingToCron(timing) === undefined) {
    throw badRequest('cronTiming needs repeat with a positive period or dayOfWeek', path)
  }
}

function extensionValue(
  bot: Resource,
  name: BotExtension,
): { readonly value: unknown; readonly expression: string } | undefined {
  const found = botExtension(bot, name)
  if (found === undefined) return undefined
  const { valueCode, valueString } = found.item
  return { value: valueCode ?? valueString, expression: found.expression }
}

function isZone(name: unknown): boolean {
  // Intl also accepts offsets as zones.
  if (typeof name !== 'string' || !/^[a-z]/i.test(name)) return false
  return attempt(() => new Intl.DateTimeFormat('en', { timeZone: name })) !== undefined
}

const LIMITS = [
  'memoryMb',
  'cpuMs',
  'maxConcurrency',
  'keyConcurrency',
  'rateQueue',
  'maxQueueSeconds',
  'retry',
] as const

/** Errors: 400 with the element at fault for limits out of range, unknown limits, invalid labels, and schedules that never occur. */
export function checkBot(bot: Resource): void {
  if (bot.timeout !== undefined && !isPositive(bot.timeout)) {
    throw badRequest('timeout must be a positive integer: seconds', 'Bot.timeout')
  }
  checkBotExtensions(bot)
  checkDeclarations(bot)
  for (const name of LIMITS) {
    const found = botExtension(bot, name)
    if (found === undefined) continue
    const { valueInteger, valuePositiveInt, valueUnsignedInt } = found.item
    if (!isPositive(valueInteger ?? valuePositiveInt ?? valueUnsignedInt)) {
      throw badRequest(`bot-${name} must be a positive integer`, found.expression)
    }
  }
  checkLabels(bot)
  checkTiming(bot.cronTiming)
  parseSchedule(bot)
  parseBotTool(bot)
  parseCdsService(bot)
}

function isPositive(value: unknown): boolean {
  return Number.isInteger(value) && Number(value) > 0
}
