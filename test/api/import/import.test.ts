import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  // Import parts are in the database, and a worker of another test file would take them.
  env: { DATABASE_URL: await createDatabase(t), MAX_BODY_BYTES: '100000' },
})
const { admin } = botica
const DONE_MS = 120_000
const PROGRESS = /^\d+% complete, \d+ of \d+ parts, again in \d+$/
const NONE = { length: 0 }
const IMPORTED_TIME = `${botica.baseUrl}fhir/StructureDefinition/imported-lastUpdated`

interface Status {
  readonly transactionTime: string
  readonly request: string
  readonly output: readonly {
    readonly type: string
    readonly inputUrl: string
    readonly count: number
    readonly created: number
    readonly updated: number
    readonly unchanged: number
    readonly skipped: number
  }[]
  readonly error: readonly { readonly url: string; readonly count: number }[]
}

interface Outcome extends Resource {
  readonly issue: readonly {
    readonly details: { readonly text: string }
    readonly diagnostics: string
    readonly expression?: readonly string[]
  }[]
}

type Input = { readonly type: string; readonly url: string }

const patients = (count: number, extra: Record<string, unknown> = {}): Resource[] =>
  Array.from({ length: count }, () => ({ ...aPatient(), id: randomUUID(), ...extra }))

const ndjson = (resources: readonly unknown[]) =>
  resources.map((resource) => `${JSON.stringify(resource)}\n`).join('')

async function upload(content: string | Uint8Array, caller = admin): Promise<string> {
  const answer = await caller.post('Binary', content, { 'Content-Type': 'application/fhir+ndjson' })
  t.equal(answer.status, 201)
  return `Binary/${answer.body.id}`
}

function parameters(inputs: readonly Input[], mode?: string) {
  return {
    resourceType: 'Parameters',
    parameter: [
      { name: 'inputFormat', valueCode: 'application/fhir+ndjson' },
      ...(mode === undefined ? [] : [{ name: 'mode', valueCode: mode }]),
      ...inputs.map(({ type, url }) => ({
        name: 'input',
        part: [
          { name: 'type', valueCode: type },
          { name: 'url', valueUrl: url },
        ],
      })),
    ],
  }
}

async function begin(inputs: readonly Input[], mode?: string, caller = admin): Promise<string> {
  const answer = await caller.post('$import', parameters(inputs, mode))
  t.equal(answer.status, 202, answer.text)
  t.match(answer.body, { resourceType: 'OperationOutcome', id: 'accepted' })
  return answer.headers.get('content-location') ?? ''
}

async function ended(url: string, caller: Client = admin): Promise<Status> {
  let last: Awaited<ReturnType<typeof caller.get<Status>>> | undefined
  const wrong: unknown[] = []
  await until(async () => {
    last = await caller.get<Status>(url)
    const progress = `${last.headers.get('x-progress')}, again in ${last.headers.get('retry-after')}`
    if (last.status === 202 && !PROGRESS.test(progress)) wrong.push(progress)
    return last.status !== 202 && last.status !== 429
  }, DONE_MS)
  t.same(wrong, [], 'reports progress and when to ask again')
  if (last === undefined) throw new Error('There was no answer')
  t.equal(last.status, 200, last.text)
  return last.body
}

async function downloadErrors({ error }: Status): Promise<readonly Outcome[]> {
  const files = await Promise.all(error.map(({ url }) => admin.get<string>(url)))
  return files.flatMap(({ text }) =>
    text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line)),
  )
}

async function serve(answer: (req: IncomingMessage, res: ServerResponse) => void): Promise<string> {
  return `http://127.0.0.1:${await listen(t, createServer(answer))}`
}

const countMatches = async (type: string, query: string) =>
  (await admin.get<{ total: number }>(`${type}?_summary=count&${query}`)).body.total

t.test('imports an uploaded file with the ids of its lines', async (t) => {
  const code = randomUUID()
  const given = patients(1200, { identifier: [{ system: 'urn:import', value: code }] })

  const url = await begin([{ type: 'Patient', url: await upload(ndjson(given)) }])
  const status = await ended(url)

  t.match(status, {
    request: `${botica.baseUrl}fhir/R4/$import`,
    output: [{ type: 'Patient', count: 1200, created: 1200, updated: 0, unchanged: 0 }],
    error: NONE,
  })
  t.equal(await countMatches('Patient', `identifier=urn:import|${code}`), 1200)
  const read = await admin.get(`Patient/${given[700]?.id}`)
  t.match(read.body, { ...given[700], meta: { versionId: '1' } })
})

t.test('creates no version when the same file is imported again', async (t) => {
  const time = '2020-01-02T03:04:05.678Z'
  const given = patients(30, { meta: { versionId: '7', lastUpdated: time } })
  const input = { type: 'Patient', url: await upload(ndjson(given)) }

  await ended(await begin([input]))
  const status = await ended(await begin([input]))

  t.match(status.output, [{ count: 30, created: 0, updated: 0, unchanged: 30 }])
  const { body } = await admin.get(`Patient/${given[3]?.id}`)
  t.match(body.meta, {
    versionId: '1',
    extension: [{ url: IMPORTED_TIME, valueInstant: time }],
  })
})

t.test('leaves resources unchanged when their own export is imported', async (t) => {
  const stored = await admin.create(aPatient())
  const line = (await admin.get(`Patient/${stored.id}`)).text

  const status = await ended(await begin([{ type: 'Patient', url: await upload(`${line}\n`) }]))

  t.match(status.output, [{ created: 0, updated: 0, unchanged: 1 }])
})

t.test('keeps the last of several lines with one id', async (t) => {
  const id = randomUUID()
  const lines = ['male', 'female', 'other'].map((gender) => ({ ...aPatient(), id, gender }))

  const status = await ended(await begin([{ type: 'Patient', url: await upload(ndjson(lines)) }]))

  t.match(status.output, [{ created: 1, updated: 2 }])
  t.match((await admin.get(`Patient/${id}`)).body, { gender: 'other', meta: { versionId: '3' } })
})

t.test('keeps existing resources with ifNoneMatch', async (t) => {
  const [there, absent] = patients(2, { gender: 'male' })
  await ended(await begin([{ type: 'Patient', url: await upload(ndjson([there])) }]))
  const lines = [there, absent].map((patient) => ({ ...patient, gender: 'female' }))

  const input = { type: 'Patient', url: await upload(ndjson(lines)) }
  const status = await ended(await begin([input], 'ifNoneMatch'))

  t.match(status.output, [{ count: 1, created: 1, skipped: 1 }])
  t.same(status.error, [])
  t.equal((await admin.get(`Patient/${there?.id}`)).body.gender, 'male')
  t.equal((await admin.get(`Patient/${absent?.id}`)).body.gender, 'female')
})

t.test('reports invalid lines by number and imports the others', async (t) => {
  const good = patients(4)
  const [a, b, c, d] = good.map((patient) => Buffer.from(JSON.stringify(patient)))
  const bad = {
    2: '{"resourceType":"Patient"',
    4: JSON.stringify({ resourceType: 'Observation', id: randomUUID() }),
    5: JSON.stringify({ resourceType: 'Patient', id: randomUUID(), birthDate: 'wrong' }),
    6: JSON.stringify({ resourceType: 'Patient' }),
    7: Buffer.from([0x22, 0xff, 0xfe, 0x22]),
    8: JSON.stringify({ resourceType: 'Patient', id: randomUUID(), language: 'a\0' }),
    9: JSON.stringify({ resourceType: 'Patient', id: 'not a legal id!' }),
    10: JSON.stringify({ ...aPatient(), id: randomUUID(), language: 'x'.repeat(100_000) }),
    13: JSON.stringify({
      ...aPatient(),
      id: randomUUID(),
      generalPractitioner: [{ reference: 'Practitioner?identifier=urn:nobody|1' }],
    }),
  }
  const lines = [
    a,
    bad[2],
    b,
    bad[4],
    bad[5],
    bad[6],
    bad[7],
    bad[8],
    bad[9],
    bad[10],
    '  ',
    c,
    bad[13],
    d,
  ]
  const file = Buffer.concat(
    lines.flatMap((line) => [Buffer.from(line ?? ''), Buffer.from('\r\n')]),
  )

  const status = await ended(await begin([{ type: 'Patient', url: await upload(file) }]))

  t.match(status, { output: [{ created: 4 }], error: [{ type: 'OperationOutcome', count: 9 }] })
  const outcomes = await downloadErrors(status)
  const told = outcomes.map(({ issue: [first] }) =>
    Number(/^Line (\d+)/.exec(first?.diagnostics ?? '')?.[1]),
  )
  t.same(told, Object.keys(bad).map(Number))
  t.match(outcomes[2]?.issue[0]?.expression, ['Patient.birthDate'])
  for (const { id } of good) t.equal((await admin.get(`Patient/${id}`)).status, 200)
})

t.test('resolves conditional references', async (t) => {
  const value = randomUUID()
  const doctor = await admin.create({
    resourceType: 'Practitioner',
    identifier: [{ system: 'urn:import', value }],
  })
  const generalPractitioner = [{ reference: `Practitioner?identifier=urn:import|${value}` }]
  const given = patients(2, { generalPractitioner })
  const lines = [ndjson(given.slice(0, 1)), ndjson(given.slice(1)).replace('?', '\\u003f')]

  await ended(await begin([{ type: 'Patient', url: await upload(lines.join('')) }]))

  for (const { id } of given) {
    const { body } = await admin.get(`Patient/${id}`)
    t.match(body, { generalPractitioner: [{ reference: `Practitioner/${doctor.id}` }] })
  }
})

t.test('keeps references to UUIDs in upper case', async (t) => {
  const [patient] = patients(1)
  const [id, upper] = [patient?.id ?? '', patient?.id?.toUpperCase()]
  const observation = { ...anObservation(`Patient/${upper}`), id: randomUUID().toUpperCase() }
  const inputs = [
    { type: 'Patient', url: await upload(ndjson([{ ...patient, id: upper }])) },
    { type: 'Observation', url: await upload(ndjson([observation])) },
  ]

  t.same((await ended(await begin(inputs))).error, [])

  t.equal(await countMatches('Observation', `subject=Patient/${id}`), 1)
  t.equal(await countMatches('Observation', `subject:Patient.family=Chalmers&subject=${id}`), 1)
  t.equal(await countMatches('Patient', `_id=${id}&_has:Observation:subject:status=final`), 1)
  const { body } = await admin.get(`Observation/${observation.id.toLowerCase()}`)
  t.match(body.subject, { reference: `Patient/${id}` })
})

t.test('decompresses files from every source', async (t) => {
  const [first, second, third] = [patients(20), patients(20), patients(20)]
  const host = await serve((req, res) => {
    const packed = gzipSync(ndjson(req.url === '/second' ? second : third))
    res.writeHead(200, req.url === '/second' ? { 'Content-Encoding': 'gzip' } : {}).end(packed)
  })
  const inputs = [await upload(gzipSync(ndjson(first))), `${host}/second`, `${host}/third.gz`]

  const status = await ended(await begin(inputs.map((url) => ({ type: 'Patient', url }))))

  t.match(status, { output: [{ created: 20 }, { created: 20 }, { created: 20 }], error: NONE })
})

t.test('resumes an interrupted download', async (t) => {
  const given = patients(1500)
  const text = ndjson(given)
  let asked = 0
  const host = await serve((_, res) => {
    asked += 1
    res.writeHead(200, { 'Content-Length': Buffer.byteLength(text) })
    if (asked > 1) return res.end(text)
    return res.write(text.slice(0, text.length * 0.8), () => res.destroy())
  })

  const status = await ended(await begin([{ type: 'Patient', url: `${host}/` }]))

  t.equal(asked, 2)
  t.match(status, { output: [{ created: 1500, unchanged: 0 }], error: NONE })
})

t.test('reports missing or invalid inputs and imports the others', async (t) => {
  const host = await serve((req, res) => {
    if (req.url === '/broken') res.end(gzipSync(ndjson(patients(50))).subarray(0, 300))
    else res.writeHead(404).end()
  })
  const urls = [`${host}/absent`, `${host}/broken`, await upload(ndjson(patients(2)))]

  const status = await ended(await begin(urls.map((url) => ({ type: 'Patient', url }))))

  t.match(status.output, [{ created: 0 }, {}, { created: 2 }])
  const texts = (await downloadErrors(status)).map(({ issue: [first] }) => first?.details.text)
  t.ok(texts.includes('The input could not be read: it was answered with status 404'))
  t.ok(texts.includes('The input could not be decompressed'), texts.join())
})

t.test('rejects unknown parameters and accepts those of the Bulk Import proposal', async (t) => {
  const url = await upload(ndjson(patients(1)))
  const body = {
    inputFormat: 'application/fhir+ndjson',
    inputSource: 'https://example.org/fhir',
    storageDetail: { type: 'https', contentEncoding: ['gzip'] },
    input: [{ type: 'Patient', url }],
  }
  const json = { 'Content-Type': 'application/json' }
  const send = (more: object) => admin.post('$import', JSON.stringify({ ...body, ...more }), json)
  for (const [more, path] of [
    [{ mod: 'ifNoneMatch' }, 'mod'],
    [{ input: [{ type: 'Patient', url, etag: 'x' }] }, 'input.etag'],
    [{ storageDetail: { type: 'aws-s3' } }, 'storageDetail.type'],
    [
      { storageDetail: { type: 'https', credentialHttpBasic: 'a:b' } },
      'storageDetail.credentialHttpBasic',
    ],
  ] as const) {
    t.match(await send(more), { status: 400, body: { issue: [{ expression: [path] }] } }, path)
  }
  const accepted = await send({})
  t.equal(accepted.status, 202, accepted.text)
  t.match(await ended(accepted.headers.get('content-location') ?? ''), { output: [{ created: 1 }] })
})

t.test('imports the files of a manifest', async (t) => {
  const [one, two] = [patients(3), patients(4)]
  const host = await serve((req, res) => {
    const output = ['one', 'two'].map((url) => ({ type: 'Patient', url }))
    if (req.url === '/export/one') res.end(ndjson(one))
    else if (req.url === '/export/two') res.end(ndjson(two))
    else {
      const requiresAccessToken = req.url === '/secret'
      res.end(JSON.stringify({ requiresAccessToken, output, deleted: [], error: [] }))
    }
  })
  const from = (url: string) => ({
    resourceType: 'Parameters',
    parameter: [{ name: 'manifest', valueUrl: url }],
  })

  const open = await admin.post('$import', from(`${host}/export/`))
  const secret = await admin.post('$import', from(`${host}/secret`))

  t.match(await ended(open.headers.get('content-location') ?? ''), {
    output: [{ created: 3 }, { created: 4 }],
    error: NONE,
  })
  const refused = await ended(secret.headers.get('content-location') ?? '')
  t.match(await downloadErrors(refused), [{ issue: [{ details: { text: /access token/ } }] }])
  t.match(refused.output.map(Object.keys), [['inputUrl', 'count']], 'has no type')
})

t.test(
  'keeps the agents of AuditEvents and rejects those in the name of this service',
  async (t) => {
    const event = (observer: object): Resource => ({
      resourceType: 'AuditEvent',
      id: randomUUID(),
      type: { code: 'rest' },
      recorded: '2026-01-01T00:00:00Z',
      agent: [{ who: { identifier: { value: '95' } }, requestor: true }],
      source: { observer },
    })
    const [own, forged] = [
      event({ display: 'App' }),
      event({ reference: `Project/${botica.project.id}` }),
    ]
    const input = { type: 'AuditEvent', url: await upload(ndjson([own, forged])) }
    const status = await ended(await begin([input]))
    t.match(status.output, [{ count: 1, created: 1 }])
    t.match(await downloadErrors(status), [
      { issue: [{ expression: ['AuditEvent.source.observer'] }] },
    ])
    t.match((await admin.get(`AuditEvent/${own?.id}`)).body, own)
  },
)
