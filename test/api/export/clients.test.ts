import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { exportJWK, generateKeyPair, SignJWT } from 'jose'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import {
  exportAll,
  fetchExportLines,
  fetchManifest,
  idsIn,
  kickOff,
} from '../../fixtures/exports/exports.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'
import { openSdk } from '../../fixtures/sdk.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, adminCredentials, baseUrl, superAdmin } = botica
const patient = await admin.create(aPatient())
const pulse = await admin.create(anObservation(`Patient/${patient.id}`))
const outsider = await admin.create(aPatient())
const group = await admin.create({
  resourceType: 'Group',
  type: 'person',
  actual: true,
  member: [{ entity: { reference: `Patient/${patient.id}` } }],
})

/** https://hl7.org/fhir/smart-app-launch/backend-services.html */
async function backendToken(scope: string): Promise<string> {
  const { publicKey, privateKey } = await generateKeyPair('ES384', { extractable: true })
  const keys = [{ ...(await exportJWK(publicKey)), kid: 'backend' }]
  const { id } = await botica.createMember()
  const found = await superAdmin.get(`ClientApplication/${id}`)
  const { secret: _, ...rest } = found.body
  const jwks = JSON.stringify({ keys })
  t.equal((await superAdmin.put(`ClientApplication/${id}`, { ...rest, jwks })).status, 200)
  botica.services.principals.forget()
  const assertion = await new SignJWT({ jti: randomUUID() })
    .setProtectedHeader({ alg: 'ES384', kid: 'backend', typ: 'JWT' })
    .setIssuer(id)
    .setSubject(id)
    .setAudience(`${baseUrl}oauth2/token`)
    .setExpirationTime('4m')
    .sign(privateKey)
  const answer = await fetch(`${baseUrl}oauth2/token`, {
    method: 'POST',
    body: new URLSearchParams({
      grant_type: 'client_credentials',
      scope,
      client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
      client_assertion: assertion,
    }),
  })
  t.equal(answer.status, 200)
  return ((await answer.json()) as { access_token: string }).access_token
}

t.test('lets a backend service sign in by key, export a Group and download it', async (t) => {
  const client = createClient(baseUrl, await backendToken('system/*.rs'))

  const exported = await exportAll(client, `Group/${group.id}/$export`)

  t.equal(exported.manifest.requiresAccessToken, true)
  t.same(idsIn(exported, 'Patient'), [patient.id])
  t.same(idsIn(exported, 'Observation'), [pulse.id])
  t.equal((await client.post('Patient', aPatient())).status, 403, 'grants read access only')
  const [file] = exported.manifest.output
  t.equal((await createClient(baseUrl).get(file?.url ?? '')).status, 401)
})

t.test('limits the export of a backend service to its scopes', async (t) => {
  const client = createClient(baseUrl, await backendToken('system/Patient.rs'))

  const all = await exportAll(client, '$export')

  t.same([...all.resources.keys()], ['Patient'])
  t.equal((await client.get('$export?_type=Observation')).status, 403)
  const stranger = createClient(baseUrl, await backendToken('system/*.rs'))
  const url = await kickOff(client, '$export')
  t.equal((await stranger.get(url)).status, 404)
})

t.test('exports with the Medplum SDK', async (t) => {
  const medplum = await openSdk(botica)

  const { output = [], requiresAccessToken } = await medplum.bulkExport(
    `Group/${group.id}`,
    'Patient,Observation',
    undefined,
    { pollStatusOnAccepted: true, pollStatusPeriod: 250 },
  )

  t.equal(requiresAccessToken, true)
  t.same(
    output.map(({ type }: { type?: string }) => type),
    ['Observation', 'Patient'],
  )
  const text = await (await medplum.download(String(output[1]?.url))).text()
  t.match(JSON.parse(text), { resourceType: 'Patient', id: patient.id })
})

function medplum(home: string, ...words: string[]): Promise<string> {
  const cli = createRequire(import.meta.url).resolve('@medplum/cli')
  const path = [dirname(process.execPath), '/usr/bin', '/bin'].join(':')
  const env = { PATH: path, HOME: home, MEDPLUM_BASE_URL: baseUrl }
  return new Promise((resolve, reject) => {
    execFile(process.execPath, [cli, ...words], { cwd: home, env }, (error, stdout, stderr) => {
      if (error === null) resolve(stdout)
      else reject(new Error(stdout + stderr, { cause: error }))
    })
  })
}

t.test('exports into a folder with the command line tool', async (t) => {
  const home = mkdtempSync(join(tmpdir(), 'botica-cli-'))
  t.teardown(() => rmSync(home, { recursive: true, force: true }))
  const client = ['--client-id', adminCredentials.id, '--client-secret', adminCredentials.secret]
  const signIn = ['--auth-type', 'client-credentials', '--base-url', baseUrl, ...client]

  await medplum(home, 'login', ...signIn)
  await medplum(home, 'bulk', 'export', '-t', 'Patient', '-d', home)

  const files = readdirSync(home).filter((name) => name.endsWith('.ndjson'))
  t.equal(files.length, 1, readdirSync(home).join())
  const lines = readFileSync(join(home, files[0] ?? ''), 'utf8')
    .trimEnd()
    .split('\n')
  const ids = lines.map((line) => (JSON.parse(line) as Resource).id)
  t.same(ids.sort(), [outsider.id, patient.id].sort())
})

t.test('imports an export into another project', async (t) => {
  const { admin: other } = await botica.createTenant()
  const { output } = await fetchManifest(admin, await kickOff(admin, 'Patient/$export'))
  const parameter = []
  for (const [type, lines] of await fetchExportLines(admin, output)) {
    const content = { 'Content-Type': 'application/fhir+ndjson' }
    const file = await other.post('Binary', lines.join('\n'), content)
    const part = [
      { name: 'type', valueCode: type },
      { name: 'url', valueUrl: `Binary/${file.body.id}` },
    ]
    parameter.push({ name: 'input', part })
  }
  const begun = await other.post('$import', { resourceType: 'Parameters', parameter })
  const { error } = await fetchManifest(other, begun.headers.get('content-location') ?? '')

  t.same(error, [])
  const { body } = await other.get(`Observation/${pulse.id}`)
  t.match(body, { ...pulse, meta: { versionId: '1' } })
})
