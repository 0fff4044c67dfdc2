/** Callers that record their responses and mark their writes, so that the ledger finds them. */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { execute, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Answer, Client } from '../../fixtures/client.ts'
import { seeded } from '../../fixtures/policy/oracle.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'

const random = seeded(Number(process.env.TEST_SEED ?? 1))

const KINDS = [
  'create',
  'conditional',
  'race',
  'transaction',
  'keyed',
  'update',
  'sync',
  'keyed run',
  'async',
] as const
type Kind = (typeof KINDS)[number]

export interface Entry {
  readonly kind: Kind
  /** Identifier of the created Patient; for an update, the written text. */
  readonly mark: string
  readonly status: number | undefined
  readonly text: string
  readonly location: string | null
  readonly ms: number
  /** True when a 503 had no Retry-After. */
  readonly isMute: boolean
}

interface Writer {
  readonly clients: readonly Client[]
  readonly bot: string
  readonly chain: string
}

/** A shorter pause doubles the load without a benefit. */
const LONGEST_PAUSE_MS = 500
const KEYED_PAUSE_MS = 100
const KEYED_REPEATS = 200

export async function keepWriting(
  writer: Writer,
  isOver: () => boolean,
): Promise<readonly Entry[]> {
  const { clients } = writer
  const entries: Entry[] = []
  for (let n = 0; !isOver(); n++) {
    const kind = KINDS[n % KINDS.length] ?? 'create'
    const mark = randomUUID()
    const client = clients[n % clients.length] as Client
    entries.push(await asked(kind, mark, () => ask(client, writer, kind, mark)))
    await delay(random(LONGEST_PAUSE_MS))
  }
  return entries
}

async function asked(kind: Kind, mark: string, send: () => Promise<Answer>): Promise<Entry> {
  let ms = 0
  async function sent(): Promise<Answer | undefined> {
    const startedAt = Date.now()
    const answer = await send().catch(() => undefined)
    ms = Math.max(ms, Date.now() - startedAt)
    return answer
  }
  let answer = await sent()
  for (let n = 0; kind.startsWith('keyed') && n < KEYED_REPEATS && isOpen(answer); n++) {
    await delay(KEYED_PAUSE_MS)
    answer = await sent()
  }
  return {
    kind,
    mark,
    status: answer?.status,
    text: answer?.text ?? '',
    location: answer?.headers.get('content-location') ?? null,
    ms,

    isMute: answer?.status === 503 && !answer.headers.has('retry-after'),
  }
}

/** Returns true if a keyed request is to be repeated: no response, an outage, or a first request in progress. */
function isOpen(answer: Answer | undefined): boolean {
  if (answer === undefined) return true
  return answer.status === 503 || (answer.status === 409 && answer.headers.has('retry-after'))
}

function ask(client: Client, { bot, chain }: Writer, kind: Kind, mark: string): Promise<Answer> {
  const patient = aPatient({ identifier: [{ system: MRN_SYSTEM, value: mark }] })
  const onlyOne = { 'If-None-Exist': `identifier=${MRN_SYSTEM}|${mark}` }
  switch (kind) {
    case 'create':
      return client.post('Patient', patient)
    case 'conditional':
      return client.post('Patient', patient, onlyOne)
    case 'race':
      return Promise.any([1, 2, 3].map(() => client.post('Patient', patient, onlyOne)))
    case 'keyed':
      return client.post('Patient', patient, { 'Idempotency-Key': mark })
    case 'transaction':
      return client.post('', {
        resourceType: 'Bundle',
        type: 'transaction',
        entry: [{ request: { method: 'POST', url: 'Patient' }, resource: patient }],
      })
    case 'update':
      return update(client, chain, mark)
    case 'sync':
      return execute(client, bot, { mark }, { Prefer: 'wait=30' })
    case 'keyed run':
      return execute(client, bot, { mark }, { Prefer: 'wait=30', 'Idempotency-Key': mark })
    case 'async':
      return execute(client, bot, { mark }, { Prefer: 'respond-async' })
    default:
      return kind satisfies never
  }
}

async function update(client: Client, url: string, mark: string): Promise<Answer> {
  const read = await client.get(url)
  if (read.status !== 200) return read
  const version = read.body.meta?.versionId
  const next = { ...read.body, code: { text: mark } }
  return client.put(url, next, { 'If-Match': `W/"${version}"` })
}

interface Row {
  readonly kind: Kind
  asked: number
  done: number
  refused: number
  unanswered: number
  lost: number
  twice: number
}

export async function judge(
  client: Client,
  entries: readonly Entry[],
  chains: readonly string[],
): Promise<readonly Row[]> {
  const rows = new Map(KINDS.map((kind) => [kind, toRow(kind)]))
  const written = (await Promise.all(chains.map((url) => readTexts(client, url)))).flat()
  for (const entry of entries) {
    const row = rows.get(entry.kind) as Row
    const count =
      entry.kind === 'update'
        ? written.filter((text) => text === entry.mark).length
        : (await findPatients(client, entry.mark)).length
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

async function findPatients(client: Client, mark: string): Promise<readonly Untyped[]> {
  const found = await client.get<Untyped>(`Patient?identifier=${MRN_SYSTEM}|${mark}`)
  return found.body.entry ?? []
}

async function readTexts(client: Client, url: string): Promise<readonly string[]> {
  const texts: string[] = []
  for (let next: string | undefined = `${url}/_history?_count=500`; next !== undefined; ) {
    const { body }: Answer<Untyped> = await client.get<Untyped>(next)
    texts.push(...body.entry.map(({ resource }: Untyped) => resource.code.text))
    next = body.link.find(({ relation }: Untyped) => relation === 'next')?.url
  }
  return texts
}

const toRow = (kind: Kind): Row => {
  return { kind, asked: 0, done: 0, refused: 0, unanswered: 0, lost: 0, twice: 0 }
}

/** Returns true if the AsyncJob of an accepted run reports it as interrupted. */
async function hasFailed(client: Client, { location }: Entry): Promise<boolean> {
  if (location === null) return false
  const { body } = await client.get<{ status?: string }>(location)
  return body.status === 'error'
}
