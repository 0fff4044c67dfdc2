/** A Bot as the service reads it: where its code is and what its runs may use. */
import type { Config } from '../config/config.ts'
import { type BotExtension, botExtension } from '../fhir/bot-extensions.ts'
import { isObject, parseReference, type Resource } from '../fhir/resource.ts'

export interface BotLimits {
  readonly wallMs: number
  readonly cpuMs: number
  readonly memoryMb: number
  readonly resultBytes: number
  readonly logBytes: number
}

export const MAX_CODE_BYTES = 5 * 1024 * 1024
const CPU_MS = 10_000
const CPU_MAX_MS = 300_000
const MEMORY_MIN_MB = 16
const MEMORY_MAX_MB = 512
const QUEUE_SECONDS = 3600
const ATTEMPTS_MAX = 20

/** Limits of one run; values above the server's own are capped. */
export function botLimits(bot: Resource, config: Config): BotLimits {
  const seconds = positive(bot.timeout)
  return {
    wallMs: Math.min(
      seconds === undefined ? config.botTimeoutMs : seconds * 1000,
      config.botTimeoutMaxMs,
    ),
    cpuMs: Math.min(setting(bot, 'cpuMs') ?? CPU_MS, CPU_MAX_MS),
    memoryMb: Math.max(
      MEMORY_MIN_MB,
      Math.min(setting(bot, 'memoryMb') ?? config.botMemoryMb, MEMORY_MAX_MB),
    ),
    resultBytes: config.botResultMaxBytes,
    logBytes: config.botLogMaxBytes,
  }
}

/** How long a run may wait for a worker, in ms. */
export function maxQueueMs(bot: Resource): number {
  return Math.min(setting(bot, 'maxQueueSeconds') ?? QUEUE_SECONDS, QUEUE_SECONDS) * 1000
}

/** How many runs of the bot may be active at once; Infinity where nobody has set it. */
export function maxConcurrency(bot: Resource, config: Config): number {
  return setting(bot, 'maxConcurrency') ?? (config.botConcurrency || Number.POSITIVE_INFINITY)
}

/** Whether each run gets an isolate that no other has used. */
export function wantsFresh(bot: Resource): boolean {
  return botExtension(bot, 'fresh')?.item.valueBoolean === true
}

/** Whether its runs may share an isolate, each in a context of its own. */
export function isConcurrent(bot: Resource): boolean {
  return botExtension(bot, 'concurrent')?.item.valueBoolean === true
}

/** How often an asynchronous run that fails is made in all. */
export function maxAttempts(bot: Resource): number {
  return Math.min(setting(bot, 'retry') ?? 1, ATTEMPTS_MAX)
}

/**
 * Id of the Binary that holds the deployed code, `inline` for the deprecated `code`, undefined
 * without any; null when `executableCode` names something that is not a Binary.
 */
export function codeLocation(
  bot: Resource,
  baseUrl: string,
): { readonly binary: string } | 'inline' | null | undefined {
  if (isObject(bot.executableCode)) {
    const { url } = bot.executableCode
    if (typeof url !== 'string') return null
    const prefix = `${baseUrl}fhir/R4/`
    const target = parseReference(url.startsWith(prefix) ? url.slice(prefix.length) : url)
    return target?.type === 'Binary' ? { binary: target.id } : null
  }
  return typeof bot.code === 'string' && bot.code !== '' ? 'inline' : undefined
}

function setting(bot: Resource, name: BotExtension): number | undefined {
  const found = botExtension(bot, name)?.item
  return positive(found?.valueInteger ?? found?.valuePositiveInt ?? found?.valueUnsignedInt)
}

function positive(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isInteger(value) && value > 0 ? value : undefined
}
