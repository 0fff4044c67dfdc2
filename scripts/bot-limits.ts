/**
 * The table of `docs/bots.md`: what bounds a bot run, read from the code that enforces it. `node
 * scripts/bot-limits.ts` prints it.
 */
import { botLimits, MAX_CODE_BYTES, maxAttempts, maxQueueMs } from '../shared/bots/bot.ts'
import { readConfig } from '../shared/config/config.ts'
import type { Resource } from '../shared/fhir/resource.ts'
import { FETCH_TIMEOUT_MS, MAX_FETCHED_BYTES } from '../shared/platform/outbound/fetch-outside.ts'
import { MAX_DEPTH } from '../shared/request/quota.ts'
import { MAX_CONCURRENT, MAX_FETCHES, MAX_FHIR_CALLS } from '../worker/bots/bridge.ts'
import { executorsWithin, runsWithin } from '../worker/bots/executors/executors.ts'
import { MOST_HELD } from '../worker/bots/slots.ts'
import {
  MAX_ITERATIONS,
  MAX_MODULUS_BITS,
  MAX_SCRYPT_BLOCKS,
} from '../worker/executor/crypto-calls.ts'
import { MAX_CALLS, MAX_TIMERS } from '../worker/executor/isolate.ts'

const ENDLESS = 1_000_000_000
const SMALL_MB = 512
const LARGE_MB = 2048

type Row = readonly [limit: string, byDefault: string, most: string, how: string]

/** Markdown, with its head. */
export function limitsTable(): string {
  const head: Row = ['limit', 'default', 'most', 'changed by']
  const line = (row: Row) => `| ${row.join(' | ')} |`
  return [line(head), '|---|--:|--:|---|', ...[...ofARun(), ...ofAll()].map(line)].join('\n')
}

function ofARun(): readonly Row[] {
  const config = readConfig({ DATABASE_URL: 'postgres://x/x', REDIS_URL: 'redis://x' })
  const plain: Resource = { resourceType: 'Bot' }
  const greedy: Resource = {
    ...plain,
    timeout: ENDLESS,
    extension: ['cpuMs', 'memoryMb', 'maxQueueSeconds', 'retry'].map((name) => ({
      url: `https://example.org/fhir/StructureDefinition/bot-${name}`,
      valueInteger: ENDLESS,
    })),
  }
  const [usual, most] = [botLimits(plain, config), botLimits(greedy, config)]
  return [
    [
      'wall time',
      s(usual.wallMs),
      s(most.wallMs),
      '`Bot.timeout`; `BOT_TIMEOUT_MS`, `BOT_TIMEOUT_MAX_MS`',
    ],
    ['processor time', s(usual.cpuMs), s(most.cpuMs), '`bot-cpuMs`'],
    ['memory', `${usual.memoryMb} MB`, `${most.memoryMb} MB`, '`bot-memoryMb`; `BOT_MEMORY_MB`'],
    ['result', mb(usual.resultBytes), '', '`BOT_RESULT_MAX_BYTES`'],
    ['log', mb(usual.logBytes), '', '`BOT_LOG_MAX_BYTES`'],
    ['wait for a worker', s(maxQueueMs(plain)), s(maxQueueMs(greedy)), '`bot-maxQueueSeconds`'],
    [
      'wait of a caller before it gets 202',
      s(config.executeWaitMs),
      '',
      '`EXECUTE_WAIT_MS`, `Prefer: wait`',
    ],
    [
      'attempts of an asynchronous run',
      `${maxAttempts(plain)}`,
      `${maxAttempts(greedy)}`,
      '`bot-retry`',
    ],
    ['input', mb(config.maxBodyBytes), '', '`MAX_BODY_BYTES`'],
    ['waiting runs of a project', `${config.queueBacklogMax}`, '', '`QUEUE_BACKLOG_MAX`'],
    [
      'runs of a bot at a time',
      none(config.botConcurrency),
      '',
      '`bot-maxConcurrency`; `BOT_CONCURRENCY`',
    ],
    [
      'runs of a project at a time',
      none(config.projectConcurrency),
      '',
      '`botConcurrency` of the Project; `PROJECT_CONCURRENCY`',
    ],
    [
      'runs that use the processor, of a queue in a worker',
      `${config.workerConcurrency}`,
      '',
      '`WORKER_CONCURRENCY`',
    ],
  ]
}

function ofAll(): readonly Row[] {
  const byMemory = '`WORKER_MEMORY_MB`'
  const fixed = 'fixed'
  return [
    [`runs of a worker at a time, with ${SMALL_MB} MB`, `${runsWithin(SMALL_MB)}`, '', byMemory],
    [`the same with ${LARGE_MB} MB`, `${runsWithin(LARGE_MB)}`, '', byMemory],
    [
      `projects with an executor, with ${SMALL_MB} MB`,
      `${executorsWithin(SMALL_MB)}`,
      '',
      byMemory,
    ],
    [`the same with ${LARGE_MB} MB`, `${executorsWithin(LARGE_MB)}`, '', byMemory],
    ['runs that a worker holds for their turn', `${MOST_HELD}`, '', fixed],
    ['code', mb(MAX_CODE_BYTES), '', fixed],
    ['FHIR requests of a run', `${MAX_FHIR_CALLS}`, '', fixed],
    ['FHIR requests of a run at a time', `${MAX_CONCURRENT}`, '', fixed],
    ['fetches of a run', `${MAX_FETCHES}`, '', fixed],
    ['a fetch', `${s(FETCH_TIMEOUT_MS)}, ${mb(MAX_FETCHED_BYTES)}`, '', fixed],
    ['calls of a run in all', `${MAX_CALLS}`, '', fixed],
    ['timers of a run at a time', `${MAX_TIMERS}`, '', fixed],
    ['iterations of a call of PBKDF2', `${MAX_ITERATIONS}`, '', fixed],
    ['memory of a call of scrypt', mb(128 * MAX_SCRYPT_BLOCKS), '', fixed],
    ['bits of an RSA key', `${MAX_MODULUS_BITS}`, '', fixed],
    ['bots that call each other', `${MAX_DEPTH} deep`, '', fixed],
  ]
}

function s(ms: number): string {
  return `${ms / 1000} s`
}

function mb(bytes: number): string {
  return bytes < 1024 * 1024 ? `${bytes / 1024} KiB` : `${bytes / 1024 / 1024} MiB`
}

function none(cap: number): string {
  return cap === 0 ? 'none' : `${cap}`
}

if (import.meta.main) console.log(limitsTable())
