/** Bot schedules: `cronString`, `cronTiming` and their extensions. */

import { type CronExpression, CronExpressionParser } from 'cron-parser'
import { badRequest } from '../core/errors.ts'
import { type BotExtension, botExtension, checkBotExtensions } from './bot-extensions.ts'
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
const DAYS = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat']

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

export function nextOccurrence(schedule: Schedule, after: Date): Date | undefined {
  return step(() => expressionFrom(schedule, after).next().toDate())
}

export function lastOccurrence(schedule: Schedule, now: Date): Date | undefined {
  // The library searches before the given second, so start with the next one.
  const from = new Date(Math.floor(now.getTime() / 1000) * 1000 + 1000)
  return step(() => expressionFrom(schedule, from).prev().toDate())
}

/** Counts occurrences after `after` up to and including `until`, at most MOST_COUNTED. */
export function countOccurrences(schedule: Schedule, after: Date, until: Date): number {
  const expression = expressionFrom(schedule, after)
  let count = 0
  while (count < MOST_COUNTED) {
    const next = step(() => expression.next().toDate())
    if (next === undefined || next > until) break
    count += 1
  }
  return count
}

/** The library throws for dates that never occur, such as 31 June. */
function step(find: () => Date): Date | undefined {
  try {
    return find()
  } catch {
    return undefined
  }
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

/** Reads `repeat.period` as times per day, on `repeat.dayOfWeek` or daily. */
function timingToCron(timing: unknown): string | undefined {
  const repeat = isObject(timing) && isObject(timing.repeat) ? timing.repeat : undefined
  if (repeat === undefined) return undefined
  const times = repeat.period === undefined ? 1 : Number(repeat.period)
  if (!(times > 0)) return undefined
  const given = Array.isArray(repeat.dayOfWeek) ? repeat.dayOfWeek : []
  const days = given.map((day) => DAYS.indexOf(day)).filter((day) => day >= 0)
  const dayOfWeek = days.length === 0 ? '*' : days.join()
  if (times > 24 && times < 60) return `*/${Math.ceil(1440 / times)} * * * ${dayOfWeek}`
  return `0 */${Math.min(24, Math.ceil(24 / times))} * * ${dayOfWeek}`
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
  try {
    new Intl.DateTimeFormat('en', { timeZone: name })
    return true
  } catch {
    return false
  }
}

const LIMITS = ['memoryMb', 'cpuMs', 'maxConcurrency', 'maxQueueSeconds', 'retry'] as const

/** Errors: 400 with the element at fault for limits out of range, unknown limits, and schedules that never occur. */
export function checkBot(bot: Resource): void {
  if (bot.timeout !== undefined && !isPositive(bot.timeout)) {
    throw badRequest('timeout must be a positive integer: seconds', 'Bot.timeout')
  }
  checkBotExtensions(bot)
  for (const name of LIMITS) {
    const found = botExtension(bot, name)
    if (found === undefined) continue
    const { valueInteger, valuePositiveInt, valueUnsignedInt } = found.item
    if (!isPositive(valueInteger ?? valuePositiveInt ?? valueUnsignedInt)) {
      throw badRequest(`bot-${name} must be a positive integer`, found.expression)
    }
  }
  parseSchedule(bot)
}

function isPositive(value: unknown): boolean {
  return Number.isInteger(value) && Number(value) > 0
}
