/**
 * Extensions of a Bot that order and delay its runs: `bot-concurrencyKey` is `header:<name>`,
 * `hl7:<segment>-<field>[.<component>]`, or a FHIRPath on a JSON input; `bot-rate` is like `10/s` or `600/min`.
 */
import { hash } from 'node:crypto'
import { badRequest, HttpError } from '../core/errors.ts'
import { type BotExtension, botExtension } from '../fhir/bot-extensions.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import { compileTenant } from '../fhirpath/custom.ts'
import type { ExecuteJob, Pace, Turn } from '../queue/jobs.ts'
import type { FoundBot } from './bot.ts'

const HEADER = /^header:([\w-]{1,64})$/
const HL7 = /^hl7:([A-Z][A-Z0-9]{2})-(\d{1,3})(?:\.(\d{1,2}))?$/
const RATE = /^(\d{1,6})\/(s|min)$/
const PER_MS = { s: 1000, min: 60_000 }
const RATE_QUEUE = 1000
const LONGEST_DEBOUNCE_S = 3600
/** Extensions that change another one. */
const NEEDS = [
  ['keyConcurrency', 'concurrencyKey'],
  ['rateQueue', 'rate'],
] as const

type KeyInput = Pick<ExecuteJob, 'headers' | 'inputKind'> & {
  readonly input?: string | undefined
}
type PacedBot = Pick<FoundBot, 'bot' | 'projectId'>
type ReadKey = (input: KeyInput) => string | undefined

/** Errors: 400 for a key, a rate or a time that cannot be read. */
export function checkPace(bot: Resource): void {
  keyReader(bot)
  const rate = botExtension(bot, 'rate')
  if (rate !== undefined && msPerRun(bot) === undefined) {
    throw badRequest('bot-rate must be like 10/s or 600/min', `${rate.expression}.valueString`)
  }
  const debounce = botExtension(bot, 'debounce')
  if (debounce !== undefined && debounceMs(bot) === undefined) {
    const range = `an integer from 1 to ${LONGEST_DEBOUNCE_S}: seconds`
    throw badRequest(`bot-debounce must be ${range}`, debounce.expression)
  }
  for (const [name, needed] of NEEDS) {
    const found = botExtension(bot, name)
    if (found === undefined || botExtension(bot, needed) !== undefined) continue
    throw badRequest(`bot-${name} needs bot-${needed}`, found.expression)
  }
}

/** Empty for a run without a key of a bot without a rate. Errors: 400 for a key that is too costly for the input. */
export function readPace(found: PacedBot, input: KeyInput): Pace {
  const value = keyReader(found.bot)?.(input)
  const hasKey = value !== undefined && value !== ''
  return { ...(hasKey ? { turn: toTurn(found, value) } : {}), ...readRate(found) }
}

/** Reads the pace of an event, which must not be lost: where the key cannot be read, the event has none. */
export function readEventPace(found: PacedBot, input: KeyInput): Pace {
  try {
    return readPace(found, input)
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    return readRate(found)
  }
}

export function readRate(found: PacedBot): Pick<Pace, 'rate'> {
  const ms = msPerRun(found.bot)
  if (ms === undefined) return {}
  const mostWaiting = integer(found.bot, 'rateQueue') ?? RATE_QUEUE
  return { rate: { key: botName(found), msPerRun: ms, mostWaiting } }
}

/** A Project may choose the ids of its Bots. */
function botName({ bot, projectId }: PacedBot): string {
  return `${projectId}:${bot.id}`
}

function toTurn(found: PacedBot, value: string): Turn {
  const digest = hash('sha256', value, 'base64url').slice(0, 22)
  return { key: `${botName(found)}:${digest}`, most: integer(found.bot, 'keyConcurrency') ?? 1 }
}

function integer(bot: Resource, name: BotExtension): number | undefined {
  const { valueInteger, valuePositiveInt, valueUnsignedInt } = botExtension(bot, name)?.item ?? {}
  const value = valueInteger ?? valuePositiveInt ?? valueUnsignedInt
  return Number.isInteger(value) ? Number(value) : undefined
}

/** Returns the time between two starts; undefined without a valid rate. */
function msPerRun(bot: Resource): number | undefined {
  const [, count = '', unit] = RATE.exec(String(botExtension(bot, 'rate')?.item.valueString)) ?? []
  const isValid = (unit === 's' || unit === 'min') && Number(count) > 0
  return isValid ? PER_MS[unit] / Number(count) : undefined
}

/** Returns the time in which the last event wins; undefined without a valid one. */
export function debounceMs(bot: Resource): number | undefined {
  const seconds = integer(bot, 'debounce') ?? 0
  return seconds > 0 && seconds <= LONGEST_DEBOUNCE_S ? seconds * 1000 : undefined
}

function keyReader(bot: Resource): ReadKey | undefined {
  const found = botExtension(bot, 'concurrencyKey')
  if (found === undefined) return undefined
  const { valueString: text } = found.item
  const path = `${found.expression}.valueString`
  if (typeof text !== 'string') throw badRequest('bot-concurrencyKey must be a string', path)
  const [, header] = HEADER.exec(text) ?? []
  if (header !== undefined) {
    const name = header.toLowerCase()
    return ({ headers }) => (Object.hasOwn(headers, name) ? headers[name] : undefined)
  }
  const [, segment, field, component] = HL7.exec(text) ?? []
  if (segment !== undefined) return (input) => hl7Value(input, segment, Number(field), component)
  try {
    const compiled = compileTenant(text)
    return (input) => fhirPathValue(input, compiled)
  } catch (error) {
    throw badRequest(error instanceof Error ? error.message : 'Invalid FHIRPath', path)
  }
}

function fhirPathValue(
  { inputKind, input }: KeyInput,
  compiled: ReturnType<typeof compileTenant>,
): string | undefined {
  if (inputKind !== 'json' || input === undefined) return undefined
  const value: unknown = JSON.parse(input)
  if (!isObject(value)) return undefined
  const found = compiled(value)
  return found.length === 0 ? undefined : JSON.stringify(found)
}

/** MSH-1 is the separator itself, so fields of MSH are one further to the left. */
function hl7Value(
  { inputKind, input = '' }: KeyInput,
  segment: string,
  field: number,
  component: string | undefined,
): string | undefined {
  if (inputKind !== 'hl7') return undefined
  const separator = input.charAt(3)
  const line = input.split(/\r\n?|\n/).find((one) => one.startsWith(segment + separator))
  const value = line?.split(separator)[segment === 'MSH' ? field - 1 : field]
  if (value === undefined || component === undefined) return value
  return value.split('~')[0]?.split(input.charAt(4))[Number(component) - 1]
}
