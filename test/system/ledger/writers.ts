/** Callers that write down what they were answered; each marks what it makes, so that all of it is found again. */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { execute, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Answer, Client } from '../../fixtures/client.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'

export type Kind = 'create' | 'conditional' | 'transaction' | 'keyed' | 'sync' | 'async'

/** One thing that was asked for. */
export interface Entry {
  readonly kind: Kind
  /** The identifier of the Patient that it makes; for a run, a mark in its input. */
  readonly mark: string
  /** The last status; undefined: no answer. */
  readonly status: number | undefined
  readonly text: string
  /** Where an accepted run tells its end. */
  readonly location: string | null
  readonly ms: number
  /** A 5xx did not say when to come back. */
  readonly isMute: boolean
}

const KINDS: readonly Kind[] = ['create', 'conditional', 'transaction', 'keyed', 'sync', 'async']
const LONGEST_PAUSE_MS = 100
/** A keyed write is repeated until it has an answer. */
const KEYED_REPEATS = 200

/** Asks for one thing after the other, until `isOver`. */
export async function keepWriting(
  clients: readonly Client[],
  bot: string,
  isOver: () => boolean,
): Promise<readonly Entry[]> {
  const entries: Entry[] = []
  for (let n = 0; !isOver(); n++) {
    const kind = KINDS[n % KINDS.length] ?? 'create'
    const mark = randomUUID()
    const client = clients[n % clients.length] as Client
    entries.push(await asked(kind, mark, () => ask(client, bot, kind, mark)))
    await delay(Math.random() * LONGEST_PAUSE_MS)
  }
  return entries
}

async function asked(kind: Kind, mark: string, send: () => Promise<Answer>): Promise<Entry> {
  const startedAt = Date.now()
  let answer = await send().catch(() => undefined)
  for (let n = 0; kind === 'keyed' && n < KEYED_REPEATS; n++) {
    if (answer !== undefined && answer.status < 409) break
    await delay(LONGEST_PAUSE_MS)
    answer = await send().catch(() => undefined)
  }
  return {
    kind,
    mark,
    status: answer?.status,
    text: answer?.text ?? '',
    location: answer?.headers.get('content-location') ?? null,
    ms: Date.now() - startedAt,
    isMute: answer?.status === 503 && !answer.headers.has('retry-after'),
  }
}

function ask(client: Client, bot: string, kind: Kind, mark: string): Promise<Answer> {
  const patient = aPatient({ identifier: [{ system: MRN_SYSTEM, value: mark }] })
  switch (kind) {
    case 'create':
      return client.post('Patient', patient)
    case 'conditional':
      return client.post('Patient', patient, {
        'If-None-Exist': `identifier=${MRN_SYSTEM}|${mark}`,
      })
    case 'keyed':
      return client.post('Patient', patient, { 'Idempotency-Key': mark })
    case 'transaction':
      return client.post('', {
        resourceType: 'Bundle',
        type: 'transaction',
        entry: [{ request: { method: 'POST', url: 'Patient' }, resource: patient }],
      })
    case 'sync':
      return execute(client, bot, { mark }, { Prefer: 'wait=30' })
    case 'async':
      return execute(client, bot, { mark }, { Prefer: 'respond-async' })
    default:
      return kind satisfies never
  }
}

/** How often each kind was answered, with what, and what was found wrong. */
export interface Row {
  readonly kind: Kind
  asked: number
  done: number
  refused: number
  unanswered: number
  lost: number
  twice: number
}

/** Compares what was answered with what is there. */
export async function judge(client: Client, entries: readonly Entry[]): Promise<readonly Row[]> {
  const rows = new Map(KINDS.map((kind) => [kind, rowOf(kind)]))
  for (const entry of entries) {
    const row = rows.get(entry.kind) as Row
    const found = await client.get<Untyped>(`Patient?identifier=${MRN_SYSTEM}|${entry.mark}`)
    const count = found.body.entry?.length ?? 0
    const isDone = entry.status !== undefined && entry.status < 300
    row.asked += 1
    if (isDone) row.done += 1
    else if (entry.status === undefined) row.unanswered += 1
    else row.refused += 1
    if (count > 1) row.twice += 1
    if (isDone && count === 0 && !(await hasFailed(client, entry))) row.lost += 1
  }
  return [...rows.values()]
}

const rowOf = (kind: Kind): Row => {
  return { kind, asked: 0, done: 0, refused: 0, unanswered: 0, lost: 0, twice: 0 }
}

/** An accepted run may end as interrupted, which its AsyncJob says. */
async function hasFailed(client: Client, { location }: Entry): Promise<boolean> {
  if (location === null) return false
  const { body } = await client.get<{ status?: string }>(location)
  return body.status === 'error'
}
