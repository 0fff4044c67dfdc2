/** Imports the parts of imports, to interrupt a part between its steps. */
import { randomUUID } from 'node:crypto'
import { createServer, type ServerResponse } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { readAhead } from '../../../shared/import/batches.ts'
import { endImportPart, leaseImportPart, savePartProgress } from '../../../shared/import/parts.ts'
import { startImports } from '../../../shared/import/worker.ts'
import type { Connection } from '../../../shared/postgres/statement.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { ended } from '../../fixtures/exports/exports.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, services } = botica
const { database } = services
const NEVER_MS = 3_600_000
const DONE_MS = 120_000
const READ_MS = 500

async function begin(port: number, paths: readonly string[]): Promise<string> {
  const parameter = paths.map((path) => ({
    name: 'input',
    part: [
      { name: 'type', valueCode: 'Patient' },
      { name: 'url', valueUrl: `http://127.0.0.1:${port}/${path}` },
    ],
  }))
  const accepted = await admin.post('$import', { resourceType: 'Parameters', parameter })
  t.equal(accepted.status, 202, accepted.text)
  return accepted.headers.get('content-location') ?? ''
}

async function serve(t: Teardown) {
  const asked: { readonly path: string; readonly res: ServerResponse }[] = []
  const server = createServer(({ url: path = '' }, res) => void asked.push({ path, res }))
  const port = await listen(t, server)
  const imports = startImports(services, NEVER_MS)
  t.teardown(() => imports.stop())
  return { port, asked, imports }
}

interface Teardown {
  teardown(end: () => Promise<void> | void): void
}

function give(res: ServerResponse | undefined, more: Partial<Resource> = {}) {
  res?.end(JSON.stringify({ ...aPatient(), id: randomUUID(), ...more }))
}

t.test('runs two parts at a time, and starts the next when one ends', async (t) => {
  const { port, asked, imports } = await serve(t)
  const url = await begin(port, ['first', 'second', 'third'])

  imports.wake()
  await until(async () => asked.length === 2, DONE_MS)
  t.same(asked.map(({ path }) => path).sort(), ['/first', '/second'])
  // The other part is still running.
  give(asked[1]?.res)
  await until(async () => asked.length === 3, DONE_MS)
  t.equal(asked[2]?.path, '/third')
  give(asked[0]?.res)
  give(asked[2]?.res)

  const { body } = await ended(admin, url)
  t.match(body, { output: [{ created: 1 }, { created: 1 }, { created: 1 }], error: { length: 0 } })
})

t.test('waits for an earlier part that may contain a conditional reference target', async (t) => {
  const { port, asked, imports } = await serve(t)
  const value = randomUUID()
  const other = { reference: `Patient?identifier=urn:part|${value}` }
  const url = await begin(port, ['first', 'second'])
  const isInOrder = async () => {
    const id = url.slice(url.lastIndexOf('/') + 1)
    const text = 'select in_order as "inOrder" from import_job where id = $1'
    const [row] = await database.query<{ inOrder: boolean }>({ text, values: [id] })
    return row?.inOrder === true
  }

  imports.wake()
  await until(async () => asked.length === 2, DONE_MS)
  const at = (path: string) => asked.findLast((one) => one.path === path)?.res
  give(at('/second'), { link: [{ other, type: 'seealso' }] })
  await until(isInOrder, DONE_MS)
  give(at('/first'), { identifier: [{ system: 'urn:part', value }] })
  await until(async () => asked.length === 3, DONE_MS)
  give(at('/second'), { link: [{ other, type: 'seealso' }] })

  const { body } = await ended(admin, url)
  t.match(body, { output: [{ created: 1 }, { created: 1 }] })
  t.same(body.error, [])
})

/** Sends the beginning of a longer input. Data received but not read when the connection ends is lost. */
async function breakOff(res: ServerResponse | undefined, text: string) {
  res?.write(text)
  await delay(READ_MS)
  res?.destroy()
}

async function listErrors(body: Awaited<ReturnType<typeof ended>>['body']): Promise<string[]> {
  const { text } = await admin.get<string>(body.error[0]?.url ?? '')
  return text.split('\n').flatMap((line) => {
    if (line === '') return []
    const [{ details, diagnostics }] = JSON.parse(line).issue
    return `${diagnostics}, ${details.text}`
  })
}

t.test('counts blank lines before the place of an interruption', async (t) => {
  const { port, asked, imports } = await serve(t)
  const url = await begin(port, ['blank'])
  const written = `\n\n${JSON.stringify({ ...aPatient(), id: randomUUID() })}\n`

  imports.wake()
  await until(async () => asked.length === 1, DONE_MS)
  await breakOff(asked[0]?.res, written)
  await until(async () => {
    imports.wake()
    return asked.length === 2
  }, DONE_MS)
  asked[1]?.res.end(`${written}\n{"resourceType":"Patient"}\n`)

  const { body } = await ended(admin, url)
  t.match(body, { output: [{ created: 1 }], error: [{ count: 1 }] })
  t.same(await listErrors(body), ['Line 5, Missing id'])
})

t.test('reports a source that fails next to the lines that were refused', async (t) => {
  const { port, asked, imports } = await serve(t)
  const url = await begin(port, ['failing'])
  const read = `{"resourceType":"Patient"}\n${JSON.stringify({ ...aPatient(), id: randomUUID() })}\n`

  for (let attempt = 1; attempt <= 4; attempt++) {
    await until(async () => {
      imports.wake()
      return asked.length === attempt
    }, DONE_MS)
    await breakOff(asked.at(-1)?.res, attempt < 4 ? ' ' : read)
  }

  const { body } = await ended(admin, url)
  t.match(body, { output: [{ created: 1 }], error: [{ count: 2 }] })
  t.match(await listErrors(body), ['Line 1, Missing id', /^Line 3, The input could not be read/])
})

t.test('commits lines without waiting for the disk, and waits at the end of a part', async (t) => {
  await begin(1, ['any'])
  const part = await leaseImportPart(database)
  if (part === undefined) throw new Error('There is nothing to take')
  const progress = { ...part, bytes: [0, 9], lines: [1, 2], failures: [] } as const
  const counts = { created: 1, updated: 0, unchanged: 0, skipped: 0 }
  /** Returns the result of `work` and the synchronous_commit setting after it. */
  const waitsFor = (work: (connection: Connection) => Promise<boolean>) =>
    database.transaction(async (connection) => {
      await connection.query({ text: 'set local synchronous_commit = on', values: [] })
      const isDone = await work(connection)
      const [row] = await connection.query<{ synchronous_commit: string }>({
        text: 'show synchronous_commit',
        values: [],
      })
      return [isDone, row?.synchronous_commit]
    })

  t.same(await waitsFor((connection) => savePartProgress(connection, { ...progress, ...counts })), [
    true,
    'off',
  ])
  t.same(await waitsFor((connection) => endImportPart(connection, part)), [true, 'on'])
})

t.test('reads the next batch while the last one is processed', async (t) => {
  const steps: string[] = []
  async function* batches() {
    try {
      for (let n = 1; n < 4; n++) {
        steps.push(`read ${n}`)
        yield n
      }
      throw new Error('It breaks off')
    } finally {
      steps.push('closed')
    }
  }
  const work = async (last: number) => {
    for await (const n of readAhead(batches())) {
      steps.push(`work ${n}`)
      if (n === last) break
    }
  }

  await t.rejects(work(4), /breaks off/)
  t.same(steps, ['read 1', 'read 2', 'work 1', 'read 3', 'work 2', 'closed', 'work 3'])
  steps.length = 0
  await work(1)
  t.same(steps, ['read 1', 'read 2', 'work 1', 'closed'])
  await work(3)
})
