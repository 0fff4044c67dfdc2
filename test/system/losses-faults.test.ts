/** Rotation of signing keys under load, and recovery from a lost storage. */
import { cpSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { exportJWK, generateKeyPair, type JWK } from 'jose'
import t from 'tap'
import { freePort } from '../../scripts/service.ts'
import { download, upload } from '../fixtures/binaries.ts'
import { createClient, signIn } from '../fixtures/client.ts'
import { exportAll, fetchManifest, kickOff } from '../fixtures/exports/exports.ts'
import { aPatient } from '../fixtures/resources.ts'
import { openCluster, type Running, said } from '../fixtures/services/cluster.ts'

const cluster = await openCluster(t)
const tenant = await cluster.createTenant('Losses')
const { admin, adminCredentials } = tenant

async function aKey(kid: string): Promise<JWK> {
  const { privateKey } = await generateKeyPair('ES256', { extractable: true })
  return { ...(await exportJWK(privateKey)), kid, alg: 'ES256' }
}

t.test('rotates the signing key in three rolling steps while clients call', async (t) => {
  const [old, next] = [await aKey('old'), await aKey('next')]
  const steps = [[old], [old, next], [next, old], [next]]
  const tokens: string[] = []
  let before: { readonly process: Running; readonly url: string } | undefined
  for (const [i, keys] of steps.entries()) {
    const port = await freePort()
    const url = `http://127.0.0.1:${port}/`
    const settings = { PORT: String(port), SIGNING_KEY: JSON.stringify(keys) }
    const process = cluster.run('server', settings)
    await said(process, '"listening"')
    // Both processes run during the rollout and accept the tokens of each other.
    const sides = [url, ...(before ? [before.url] : [])]
    for (const side of sides) {
      const { id, secret } = adminCredentials
      tokens.push((await signIn(side, id, secret)).token ?? '')
    }
    // Tokens of the old key have expired when the last step removes it.
    const alive = i < steps.length - 1 ? tokens : tokens.slice(-2)
    for (const side of sides) {
      for (const token of alive) {
        const { status } = await createClient(side, token).get('Patient?_count=1')
        t.equal(status, 200, `step ${i}`)
      }
    }
    before?.process.child.kill('SIGTERM')
    before = { process, url }
  }
  const [first] = tokens
  t.equal((await createClient(before?.url ?? '', first).get('Patient')).status, 401)
})

t.test('loses only contents with a lost storage, until its backup is restored', async (t) => {
  const { dataDir } = cluster
  const [storage, backup] = [join(dataDir, 'storage'), join(dataDir, 'backup')]
  await cluster.startWorker()
  const patient = await admin.create(aPatient())
  const binary = await upload(admin, 'kept', 'text/plain')
  const before = await kickOff(admin, '$export?_type=Patient')
  const { output } = await fetchManifest(admin, before)
  const file = output[0]?.url ?? ''
  t.equal((await admin.get(file)).status, 200)
  cpSync(storage, backup, { recursive: true })

  rmSync(storage, { recursive: true })
  t.equal((await admin.get(`Patient/${patient.id}`)).status, 200)
  const gone = await download(cluster, `Binary/${binary.id}`, admin)
  t.equal(gone.status, 404)
  t.match(JSON.parse(String(gone.bytes)), { resourceType: 'OperationOutcome' })
  t.equal((await admin.get(file)).status, 404)
  const later = await upload(admin, 'written after the loss', 'text/plain')
  t.equal(
    String((await download(cluster, `Binary/${later.id}`, admin)).bytes),
    'written after the loss',
  )
  t.ok((await exportAll(admin, '$export?_type=Patient')).resources.get('Patient'))

  // Contents never change, so the backup can be copied over newer files.
  cpSync(backup, storage, { recursive: true })
  t.equal(String((await download(cluster, `Binary/${binary.id}`, admin)).bytes), 'kept')
  t.equal((await admin.get(file)).status, 200)
})
