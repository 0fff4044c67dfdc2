/** `botica load-package` stores the definitions of an implementation guide, which `/metadata` then declares. */
import { execFile } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { create } from 'tar'
import { openBotica } from '../../fixtures/botica.ts'
import { listen } from '../../fixtures/http/listening.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { aPatient } from '../../fixtures/resources.ts'

const ROOT = join(import.meta.dirname, '../../..')
const OWN = 'http://example.org/fhir/us-like'
const RACE = 'http://hl7.org/fhir/us/core/StructureDefinition/us-core-race'
const FHIR_JSON = 'application/fhir+json'
const STATEMENT = `${OWN}/CapabilityStatement/server`

const botica = await openBotica(t)
const home = mkdtempSync(join(tmpdir(), 'botica-package-'))
t.teardown(() => rmSync(home, { recursive: true, force: true }))

const definitions = readFileSync(join(ROOT, 'test/data/us-like/profiles.ndjson'), 'utf8')
  .trim()
  .split('\n')
  .map((line): Raw => JSON.parse(line))

const common = { version: '1.0.0', name: 'Like', status: 'active', date: '2026-01-01' }
const capabilities = (mode: string) => ({
  resourceType: 'CapabilityStatement',
  ...common,
  url: `${OWN}/CapabilityStatement/${mode}`,
  kind: 'requirements',
  description: `What a ${mode} does`,
  fhirVersion: '4.0.1',
  format: ['json'],
  rest: [{ mode }],
})
const parameter = (code: string, expression: string) => ({
  resourceType: 'SearchParameter',
  ...common,
  url: `${OWN}/SearchParameter/${code}`,
  description: code,
  code,
  base: ['Patient'],
  type: 'token',
  expression,
})
const guide = {
  resourceType: 'ImplementationGuide',
  ...common,
  url: `${OWN}/ImplementationGuide/us-like`,
  packageId: 'example.us-like',
  fhirVersion: ['4.0.1'],
}

/** Names are longer than the 100 characters of the first tar format. */
const LONG = 'x'.repeat(120)

/** Returns the file of a package, as publishers of guides build it. */
async function aPackage(name: string, resources: readonly Raw[]): Promise<string> {
  const folder = join(home, name)
  mkdirSync(join(folder, 'package/example'), { recursive: true })
  const put = (file: string, value: object) =>
    writeFileSync(join(folder, 'package', file), JSON.stringify(value))
  put('package.json', {
    ...{ name, version: '1.0.0', fhirVersions: ['4.0.1'] },
    dependencies: { 'hl7.fhir.r4.core': '4.0.1', 'example.codes': '2.0.0' },
  })
  put('.index.json', { 'index-version': 1, files: [] })
  put('example/Patient-example.json', { resourceType: 'Patient', id: 'example' })
  for (const [i, resource] of resources.entries()) {
    put(`${resource.resourceType}-${i}-${LONG}.json`, { id: `like-${i}`, ...resource })
  }
  const file = join(home, `${name}.tgz`)
  await create({ gzip: true, cwd: folder, file, portable: true }, ['package'])
  return file
}

interface Run {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

function load(client: { readonly id: string; readonly secret: string }, place: string) {
  const own = {
    ...{ NODE_OPTIONS: '', MEDPLUM_BASE_URL: botica.baseUrl },
    ...{ MEDPLUM_CLIENT_ID: client.id, MEDPLUM_CLIENT_SECRET: client.secret },
  }
  const args = ['--disable-warning=ExperimentalWarning', join(ROOT, 'scripts/cli/botica.ts')]
  return new Promise<Run>((resolve) => {
    execFile(
      process.execPath,
      [...args, 'load-package', place],
      { cwd: home, env: { ...process.env, ...own } },
      (error, stdout, stderr) => {
        resolve({ code: error === null ? 0 : Number(error.code ?? 1), stdout, stderr })
      },
    )
  })
}

interface Declared {
  readonly instantiates: readonly string[]
  readonly implementationGuide?: readonly string[]
  readonly rest: readonly {
    readonly resource: readonly { readonly type: string; readonly supportedProfile?: string[] }[]
  }[]
}

const profilesIn = ({ rest }: Declared, type: string) =>
  rest[0]?.resource.find((item) => item.type === type)?.supportedProfile ?? []

t.test(
  'loads a package into a project, and declares it in the metadata of this project',
  async (t) => {
    const { admin, adminCredentials } = await botica.createTenant()
    const file = await aPackage('example.us-like', [
      ...definitions,
      guide,
      capabilities('server'),
      capabilities('client'),
      parameter('like-sex', "Patient.extension.where(url = 'http://like.org/sex').value"),
      parameter('birthdate', 'Patient.birthDate'),
    ])
    const first = await load(adminCredentials, file)
    t.equal(first.code, 0, first.stderr)
    t.match(first.stdout, /^example\.us-like 1\.0\.0$/m)
    t.match(first.stdout, /^StructureDefinition\s+9 \(9 new\)$/m)
    t.match(first.stdout, /^ValueSet\s+8 \(8 new\)$/m)
    t.match(first.stdout, /^SearchParameter\s+1 \(1 new\)$/m)
    t.match(first.stdout, /1 SearchParameter skipped.*birthdate/)
    t.match(first.stdout, /not loaded: example\.codes 2\.0\.0/)
    t.notMatch(first.stdout, 'Patient  ')

    const { body, headers } = await admin.get<Declared>('metadata')
    t.ok(body.instantiates.includes(`${STATEMENT}|1.0.0`))
    t.notOk(body.instantiates.some((url) => url.includes('/client')))
    t.same(body.implementationGuide, [`${guide.url}|1.0.0`])
    t.ok(profilesIn(body, 'Patient').includes(`${OWN}/StructureDefinition/patient`))
    t.ok(profilesIn(body, 'Observation').includes(`${OWN}/StructureDefinition/blood-pressure`))
    t.notMatch(JSON.stringify(body), RACE, 'extensions are not profiles of a type')
    const again = await admin.get('metadata', { 'If-None-Match': headers.get('etag') ?? '' })
    t.equal(again.status, 304)

    const claim = { meta: { profile: [`${OWN}/StructureDefinition/patient`] }, name: undefined }
    const refused = await admin.post('Patient', aPatient(claim))
    t.equal(refused.status, 400, 'validates by the loaded profiles')

    for (const other of [(await botica.createTenant()).admin, botica.anonymous]) {
      t.notMatch((await other.get('metadata')).text, OWN)
    }
  },
)

t.test('declares definitions whose texts have half surrogate pairs', async (t) => {
  const { admin } = await botica.createTenant()
  const [profile] = definitions.filter(({ url }) => url === `${OWN}/StructureDefinition/patient`)
  for (const item of [guide, profile]) {
    const text = JSON.stringify({ ...item, description: 'half and whole' })
      .replace('half', String.raw`\ud83d \\ud83d \uDE00`)
      .replace('whole', String.raw`\ud83d\ude00`)
    const made = await admin.post(item?.resourceType, text, { 'Content-Type': FHIR_JSON })
    t.equal(made.status, 201, made.text)
  }
  const { status, body } = await admin.get<Declared>('metadata')
  t.equal(status, 200)
  t.same(body.implementationGuide, [`${guide.url}|1.0.0`])
  t.ok(profilesIn(body, 'Patient').includes(profile?.url))
})

t.test('a second load changes nothing', async (t) => {
  const { admin, adminCredentials } = await botica.createTenant()
  const file = await aPackage('example.twice', [...definitions, guide])
  t.match(await load(adminCredentials, file), { code: 0 })
  const bundle = await admin.get<Raw>('StructureDefinition?_sort=_id&_count=100')
  const second = await load(adminCredentials, file)
  t.equal(second.code, 0, second.stderr)
  t.match(second.stdout, /^StructureDefinition\s+9 \(0 new\)$/m)
  const after = await admin.get<Raw>('StructureDefinition?_sort=_id&_count=100')
  const versions = ({ body }: { body: Raw }) => body.entry.map((e: Raw) => e.resource.meta)
  t.same(versions(after), versions(bundle))
})

t.test('loads a package from an address', async (t) => {
  const { admin, adminCredentials } = await botica.createTenant()
  const file = await aPackage('example.remote', definitions)
  const port = await listen(
    t,
    createServer((request, response) => {
      if (request.url !== '/guide/package.tgz') response.writeHead(404).end()
      else response.end(readFileSync(file))
    }),
  )
  const missing = await load(adminCredentials, `http://127.0.0.1:${port}/other.tgz`)
  t.match(missing, { code: 1, stderr: /404/ })
  const { code, stderr } = await load(
    adminCredentials,
    `http://127.0.0.1:${port}/guide/package.tgz`,
  )
  t.equal(code, 0, stderr)
  const { body } = await admin.get<Declared>('metadata')
  t.ok(profilesIn(body, 'Patient').includes(`${OWN}/StructureDefinition/patient`))
})

t.test('reports rejected definitions, and loads the rest', async (t) => {
  const { adminCredentials } = await botica.createTenant()
  const file = await aPackage('example.faulty', [
    { ...definitions[0], url: `${OWN}/StructureDefinition/faulty`, status: 'none' },
    ...definitions,
  ])
  const { code, stdout, stderr } = await load(adminCredentials, file)
  t.equal(code, 1)
  t.match(
    stderr,
    /StructureDefinition http:\/\/example\.org\/fhir\/us-like\/StructureDefinition\/faulty: .*status/,
  )
  t.match(stdout, /^StructureDefinition\s+9 \(9 new\)$/m)
})

t.test('rejects a file without a package', async (t) => {
  const { adminCredentials } = await botica.createTenant()
  const text = join(home, 'text.tgz')
  writeFileSync(text, 'no archive')
  t.match(await load(adminCredentials, text), { code: 1, stderr: /text\.tgz is not a package/ })
  const cut = join(home, 'cut.tgz')
  const whole = readFileSync(await aPackage('example.cut', definitions))
  writeFileSync(cut, whole.subarray(0, whole.length / 2))
  t.match(await load(adminCredentials, cut), { code: 1, stderr: /cut\.tgz is not a package/ })
  const bare = join(home, 'bare')
  cpSync(join(home, 'example.us-like/package/example'), bare, { recursive: true })
  const other = join(home, 'other.tgz')
  await create({ gzip: true, cwd: home, file: other }, ['bare'])
  t.match(await load(adminCredentials, other), { code: 1, stderr: /no package\/package\.json/ })
})

t.test('metadata leaves out a profile that was deleted or retired', async (t) => {
  const { admin } = await botica.createTenant()
  const [one, two] = await Promise.all(
    definitions
      .filter(({ url }) => /\/(patient|vital-signs)$/.test(url))
      .map((definition) => admin.create(definition as never)),
  )
  if (one === undefined || two === undefined) throw new Error('There are two')
  const listed = async (url: string) => (await admin.get('metadata')).text.includes(`"${url}"`)
  t.ok(await listed(one.url as string))
  t.ok(await listed(two.url as string))
  await admin.del(`StructureDefinition/${one.id}`)
  await admin.put(`StructureDefinition/${two.id}`, { ...two, status: 'retired' })
  t.notOk(await listed(one.url as string))
  t.notOk(await listed(two.url as string))
})
