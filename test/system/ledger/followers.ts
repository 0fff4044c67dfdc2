/** Followers receive the writes of others, by web socket, export chain, import or schedule. */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { type Tenant, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Answer, Client } from '../../fixtures/client.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'
import { bound, openSocket, type Socket, socketUrl } from '../../fixtures/sockets.ts'

interface Teardown {
  teardown(end: () => void): void
}

const PAUSE_MS = 200
const REST_MS = 1000
const PATIENCE_MS = 240_000
/** Maximum delay of a change whose message was lost, with workers frozen and Redis down. */
const OVERLAP_MS = 60_000
const IMPORTED_AT_ONCE = 200

export function readMark(patient: Untyped): string {
  const own = patient?.identifier?.find(({ system }: Untyped) => system === MRN_SYSTEM)
  return own?.value ?? ''
}

/** Keeps a socket open, binds again after a close and searches for missed changes. Returns all marks. */
export async function keepListening(
  t: Teardown,
  client: Client,
  baseUrl: string,
  isOver: () => boolean,
): Promise<ReadonlySet<string>> {
  const marks = new Set<string>()
  let since = Date.now()
  while (!isOver()) {
    const socket = await repeated(() => openedSocket(t, client, baseUrl))
    for (const mark of await repeated(() => marksSince(client, since - OVERLAP_MS))) marks.add(mark)
    let isClosed = false
    let heard = 0
    void socket.closed.then(() => {
      isClosed = true
    })
    while (!isClosed && !isOver()) {
      await delay(PAUSE_MS)
      for (; heard < socket.unheard.length; heard++) {
        for (const { resource } of socket.unheard[heard].entry ?? []) {
          if (resource?.resourceType === 'Patient') marks.add(readMark(resource))
        }
      }
    }
    since = Date.now()
  }
  return marks
}

async function openedSocket(t: Teardown, client: Client, baseUrl: string): Promise<Socket> {
  const socket = await openSocket(t, socketUrl(baseUrl))
  await Promise.race([
    bound(client, socket, 'Patient'),
    socket.closed.then((code) => Promise.reject(new Error(`Closed with ${code}`))),
  ])
  return socket
}

async function marksSince(client: Client, since: number): Promise<readonly string[]> {
  const marks: string[] = []
  const time = new Date(since).toISOString()
  let next: string | undefined = `Patient?_lastUpdated=ge${time}&_count=1000&_elements=identifier`
  while (next !== undefined) {
    const { body }: Answer<Untyped> = await answered(() => client.get<Untyped>(String(next)))
    marks.push(...(body.entry ?? []).map(({ resource }: Untyped) => readMark(resource)))
    next = body.link.find(({ relation }: Untyped) => relation === 'next')?.url
  }
  return marks
}

interface ChainOfExports {
  readonly marks: ReadonlySet<string>
  readonly exports: number
  readonly twice: number
}

/** Exports the Patients changed since the last export until `isOver`, and once more at the end. */
export async function keepExporting(
  client: Client,
  isOver: () => boolean,
): Promise<ChainOfExports> {
  const marks = new Set<string>()
  let exports = 0
  let twice = 0
  let since: string | undefined
  for (let isLast = false; !isLast; ) {
    isLast = isOver()
    const query = since === undefined ? '' : `&_since=${encodeURIComponent(since)}`
    const { headers } = await answered(() => client.get(`$export?_type=Patient${query}`), 202)
    const manifest = await ended(client, headers.get('content-location') ?? '')
    const lines: string[] = []
    for (const { url } of manifest.output ?? []) {
      const file = await answered(() => client.get<string>(url))
      lines.push(...file.text.trim().split('\n'))
    }
    const patients = lines.filter((line) => line !== '').map((line) => JSON.parse(line))
    if (new Set(patients.map(({ id }) => id)).size < patients.length) twice += 1
    for (const patient of patients) marks.add(readMark(patient))
    exports += 1
    since = manifest.transactionTime
    await delay(REST_MS)
  }
  return { marks, exports, twice }
}

/** Imports new Patients repeatedly; returns the ids of accepted imports that ended. */
export async function keepImporting(
  client: Client,
  isOver: () => boolean,
): Promise<readonly string[]> {
  const ids: string[] = []
  while (!isOver()) {
    const own = Array.from({ length: IMPORTED_AT_ONCE }, () => randomUUID())
    const lines = own.map((id) => `${JSON.stringify({ ...aPatient(), id })}\n`).join('')
    const type = { 'Content-Type': 'application/fhir+ndjson' }
    const binary = await answered(() => client.post('Binary', lines, type), 201)
    const part = [
      { name: 'type', valueCode: 'Patient' },
      { name: 'url', valueUrl: `Binary/${binary.body.id}` },
    ]
    const parameters = { resourceType: 'Parameters', parameter: [{ name: 'input', part }] }
    // Without a response the import may have started, so the next one has new Patients.
    const begun = await client.post('$import', parameters).catch(() => undefined)
    if (begun?.status !== 202) continue
    await ended(client, begun.headers.get('content-location') ?? '')
    ids.push(...own)
    await delay(REST_MS)
  }
  return ids
}

const TIMERS = 5
const MINUTE_MS = 60_000

interface Timers {
  /** Waits until each bot has run again, then returns run counts: more runs than minutes are duplicates. */
  ended(): Promise<{ readonly runs: readonly number[]; readonly wrong: readonly string[] }>
}

/** Creates bots that run each minute; a retried run has no second effect. */
export async function startTimers(tenant: Tenant): Promise<Timers> {
  const { admin } = tenant
  const startedAt = Date.now()
  const ids = await Promise.all(
    Array.from({ length: TIMERS }, () =>
      aBot(
        tenant,
        handler(`const identifier = [{ system: 'timer/' + event.bot.reference, value: event.runId }]
          const basic = { resourceType: 'Basic', code: { text: 'ran' }, identifier }
          await medplum.createResourceIfNoneExist(basic, 'identifier=' + identifier[0].system + '|' + event.runId)`),
        { fields: { cronString: '* * * * *' } },
      ),
    ),
  )
  const readRuns = async (id: string) => {
    const search = `Basic?identifier=timer/Bot/${id}|&_summary=count`
    return (await answered(() => admin.get<Untyped>(search))).body.total as number
  }
  return {
    async ended() {
      const before = await Promise.all(ids.map(readRuns))
      const hasGoneOn = async (id: string, n: number) => (await readRuns(id)) > (before[n] ?? 0)
      const wrong: string[] = []
      await Promise.all(
        ids.map((id, n) =>
          until(() => hasGoneOn(id, n), 3 * MINUTE_MS).catch(() =>
            wrong.push(`${id} stands still`),
          ),
        ),
      )
      const runs = await Promise.all(ids.map(readRuns))
      const most = Math.ceil((Date.now() - startedAt) / MINUTE_MS)
      for (const [n, count] of runs.entries()) {
        if (count > most) wrong.push(`${ids[n]} ran ${count} times in ${most} minutes`)
      }
      return { runs, wrong }
    },
  }
}

async function ended(client: Client, url: string): Promise<Untyped> {
  const { body } = await answered(() => client.get<Untyped>(url))
  return body
}

function answered<Body>(send: () => Promise<Answer<Body>>, status = 200): Promise<Answer<Body>> {
  return repeated(async () => {
    const answer = await send()
    if (answer.status !== status) throw new Error(`Answered ${answer.status}: ${answer.text}`)
    return answer
  })
}

async function repeated<T>(what: () => Promise<T>): Promise<T> {
  const deadline = Date.now() + PATIENCE_MS
  for (;;) {
    try {
      return await what()
    } catch (error) {
      if (Date.now() > deadline) throw error
      await delay(PAUSE_MS)
    }
  }
}
