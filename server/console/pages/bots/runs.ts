/** Bot runs and metrics, as returned by the service. */
import type { Attachment, Parameters, ParametersParameter, Reference } from '@medplum/fhirtypes'

export interface Run {
  readonly id: string
  /** Present in the list over all bots. */
  readonly bot: { readonly id: string; readonly name: string | undefined } | undefined
  readonly status: string
  readonly started: string
  readonly durationMs: number
  readonly cpuMs: number
  readonly memoryMb: number | undefined
  readonly version: string
  readonly attempt: number
  readonly mode: string
  readonly requester: string | undefined
  readonly runAs: string | undefined
  readonly waitedFor: string | undefined
  readonly waitedMs: number | undefined
  /** A hash, the same for runs that take turns. */
  readonly key: string | undefined
  readonly replaced: number | undefined
  readonly streamedStatus: number | undefined
  readonly streamedBytes: number | undefined
  readonly error: string | undefined
  readonly log: string
  readonly input: Attachment | undefined
  readonly callCount: number
  readonly calls: readonly Call[]
}

interface Call {
  readonly place: number
  readonly method: string
  readonly path: string
  readonly status: number | undefined
  readonly ms: number | undefined
  readonly wrote: readonly string[]
}

export function parseRuns({ parameter = [] }: Parameters): readonly Run[] {
  return parameter.filter(({ name }) => name === 'run').map(({ part = [] }) => parseRun(part))
}

function parseRun(part: readonly ParametersParameter[]): Run {
  const at = (name: string) => part.find((item) => item.name === name)
  return {
    id: at('runId')?.valueUuid?.replace('urn:uuid:', '') ?? '',
    bot: toBot(at('bot')?.valueReference),
    status: at('status')?.valueCode ?? '',
    started: at('started')?.valueInstant ?? '',
    durationMs: at('durationMs')?.valueDecimal ?? 0,
    cpuMs: at('cpuMs')?.valueDecimal ?? 0,
    memoryMb: at('memoryMb')?.valueDecimal,
    version: at('botVersion')?.valueString ?? '',
    attempt: at('attempt')?.valueInteger ?? 1,
    mode: at('mode')?.valueCode ?? '',
    requester: at('requester')?.valueReference?.reference,
    runAs: at('runAs')?.valueReference?.reference,
    waitedFor: at('waitedFor')?.valueCode,
    waitedMs: at('waitedMs')?.valueDecimal,
    key: at('key')?.valueString,
    replaced: at('replaced')?.valueInteger,
    streamedStatus: at('streamedStatus')?.valueInteger,
    streamedBytes: at('streamedBytes')?.valueInteger,
    error: at('error')?.valueString,
    log: at('log')?.valueString ?? '',
    input: at('input')?.valueAttachment,
    callCount: at('callCount')?.valueInteger ?? 0,
    calls: part.filter(({ name }) => name === 'call').map(parseCall),
  }
}

function toBot(found: Reference | undefined) {
  if (found?.reference === undefined) return undefined
  return { id: found.reference.replace('Bot/', ''), name: found.display }
}

function parseCall({ part = [] }: ParametersParameter, place: number): Call {
  const at = (name: string) => part.find((item) => item.name === name)
  return {
    place,
    method: at('method')?.valueCode ?? '',
    path: at('path')?.valueString ?? '',
    status: at('status')?.valueInteger,
    ms: at('ms')?.valueDecimal,
    wrote: part.flatMap(({ valueReference }) => valueReference?.reference ?? []),
  }
}

interface Histogram {
  readonly count: number
  readonly sumMs: number
  readonly buckets: Readonly<Record<string, number>>
}

export interface Outcomes {
  readonly started: number
  readonly failed: Readonly<Record<string, number>>
  readonly runTime: Histogram
}

export interface BotFigures extends Outcomes {
  readonly bot: { readonly reference: string }
  readonly queueWait: Histogram
  /** By the name of a version, or by the code of one without a name. */
  readonly versions: Readonly<Record<string, Outcomes>>
}

export interface ProjectFigures {
  readonly lanes: Readonly<
    Record<string, { readonly inFlight: number; readonly oldestWaitingSeconds: number }>
  >
  readonly bots: readonly BotFigures[]
}

export function failures({ failed }: Pick<Outcomes, 'failed'>): number {
  return Object.values(failed).reduce((sum, count) => sum + count, 0)
}

export function quantile({ count, buckets }: Histogram, share: number): string {
  const ends = Object.entries(buckets).sort(([a], [b]) => bucketLimit(a) - bucketLimit(b))
  let seen = 0
  for (const [end, runs] of ends) {
    seen += runs
    if (seen >= count * share) return end === 'more' ? '> 10 min' : `≤ ${milliseconds(Number(end))}`
  }
  return '–'
}

function bucketLimit(bucket: string): number {
  return bucket === 'more' ? Number.POSITIVE_INFINITY : Number(bucket)
}

export function milliseconds(ms: number): string {
  return ms < 1000 ? `${Math.round(ms * 10) / 10} ms` : `${Math.round(ms / 100) / 10} s`
}
