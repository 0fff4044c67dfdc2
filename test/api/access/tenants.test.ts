import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { adtMessages, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t, { worker: true })
const { admin, anonymous, superAdmin } = botica
const other = await botica.createTenant()

t.test('lets a project admin read created resources', async (t) => {
  const patient = await admin.create(aPatient())

  const found = await admin.get(`Patient/${patient.id}`)
  t.equal(found.status, 200)
  t.match(found.body, { resourceType: 'Patient', id: patient.id })
})

t.test('hides resources from another project and rejects its changes', async (t) => {
  const patient = await admin.create(aPatient())
  const path = `Patient/${patient.id}`

  t.equal((await other.admin.get(path)).status, 404)
  t.equal((await other.admin.get(`${path}/_history`)).status, 404)
  t.equal((await other.admin.del(path)).status, 404)
  t.not((await other.admin.put(path, patient)).status, 200)
  t.match((await other.admin.get(`Patient?_id=${patient.id}&_total=accurate`)).body, {
    total: 0,
  })
  t.match((await admin.get(path)).body, patient)
})

t.test('requires a token, and lets the super admin read everywhere', async (t) => {
  const patient = await admin.create(aPatient())

  t.equal((await anonymous.get(`Patient/${patient.id}`)).status, 401)
  t.equal((await superAdmin.get(`Patient/${patient.id}`)).status, 200)
})

t.test('limits a project admin to the own project', async (t) => {
  const json = { 'Content-Type': 'application/json' }
  const path = (id: string) => `/admin/projects/${id}/client`

  t.equal((await admin.post(path(botica.project.id), { name: 'Mine' }, json)).status, 201)
  t.equal((await admin.post(path(other.project.id), { name: 'Theirs' }, json)).status, 403)
})

t.test('hides bots from other projects', async (t) => {
  const json = { 'Content-Type': 'application/json' }
  const made = await admin.post(`/admin/projects/${botica.project.id}/bot`, { name: 'echo' }, json)
  const code = 'exports.handler = async (medplum, event) => event.input.getSegment("PID").name'
  await admin.post(`Bot/${made.body.id}/$deploy`, { code, filename: 'echo.js' }, json)
  const [message] = await adtMessages()
  const run = `Bot/${made.body.id}/$execute`
  const hl7 = { 'Content-Type': 'x-application/hl7-v2+er7' }

  const own = await admin.post(run, message?.text, hl7)
  t.equal(own.status, 200, own.text)
  t.equal(own.text, 'PID')
  t.equal((await other.admin.post(run, message?.text, hl7)).status, 404)
})
