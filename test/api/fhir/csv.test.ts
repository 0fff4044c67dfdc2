import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const { admin, createTenant } = await openBotica(t)

t.test('a search is a table of the fields asked for', async (t) => {
  const patient = await admin.create(
    aPatient({
      name: [{ prefix: ['Dr'], given: ['Ann', 'B.'], family: 'O"Neil, sen.' }],
      telecom: [{ system: 'phone', value: '+49 30 1' }],
      maritalStatus: { text: '=1+1' },
      address: [{ line: ['1 Way'], city: 'Ulm' }],
      active: false,
    }),
  )
  const fields = 'id,name,name.family,telecom,maritalStatus,address-city,address,active,photo'
  const table = await admin.get(`Patient/$csv?_fields=${fields}&_id=${patient.id}`, {
    Accept: 'text/csv',
  })
  t.equal(table.status, 200)
  t.equal(table.headers.get('content-type'), 'text/csv; charset=utf-8')
  t.equal(table.headers.get('content-disposition'), 'attachment; filename=export.csv')
  const [head, line, end] = table.text.replace('\uFEFF', '').split('\r\n')
  t.equal(head, fields)
  const cells = [
    patient.id,
    '"Dr Ann B. O""Neil, sen."',
    '"O""Neil, sen."',
    "'+49 30 1",
    "'=1+1",
    'Ulm',
    '"1 Way, Ulm"',
    'false',
    '',
  ]
  t.equal(line, cells.join(','))
  t.equal(end, '')
})

t.test('values of a choice, codes and references are readable', async (t) => {
  const { id } = await admin.create(
    anObservation('Patient/1', { valueQuantity: { value: 7.5, unit: 'mg' } }),
  )
  const { text } = await admin.get(`Observation/$csv?_fields=code,subject,value,date&_id=${id}`)
  t.match(text, '\r\nHeart rate,Patient/1,7.5 mg,2024-05-06T07:08:09Z\r\n')
})

t.test('more rows than a page are all in the table, in order', async (t) => {
  const { admin } = await createTenant()
  const entry = Array.from({ length: 1005 }, (_, i) => ({
    request: { method: 'POST', url: 'Basic' },
    resource: { resourceType: 'Basic', code: { text: `n${i}` } },
  }))
  const made = await admin.post('', { resourceType: 'Bundle', type: 'batch', entry })
  t.equal(made.status, 200)
  const lines = async (query: string) =>
    (await admin.get(`Basic/$csv?_fields=code&${query}`)).text.trim().split('\r\n').length - 1
  t.equal(await lines(''), 1000)
  t.equal(await lines('_count=2000'), 1005)
  t.equal(await lines('_count=3'), 3)
  t.equal(await lines('_count=0'), 0)
})

t.test('a table of several pages is sent as it is read', async (t) => {
  const { admin } = await createTenant()
  const entry = Array.from({ length: 1500 }, (_, i) => ({
    request: { method: 'POST', url: 'Basic' },
    resource: { resourceType: 'Basic', code: { text: `n${i}` } },
  }))
  await admin.post('', { resourceType: 'Bundle', type: 'batch', entry })
  const path = 'Basic/$csv?_fields=code&_count=1400&_sort=_lastUpdated'
  const table = await admin.get(path)
  t.equal(table.status, 200)
  t.equal(table.headers.get('content-type'), 'text/csv; charset=utf-8')
  t.equal(table.headers.get('content-length'), null, 'has no length before it is sent')
  const [head, ...lines] = table.text.replace('\uFEFF', '').trimEnd().split('\r\n')
  t.equal(head, 'code')
  t.equal(new Set(lines).size, 1400)
  const inside = await admin.post<{ entry: [{ resource: { data: string } }] }>('', {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'GET', url: path } }],
  })
  const data = inside.body.entry[0].resource.data
  t.equal(Buffer.from(data, 'base64').toString().length, table.text.length + 1, 'with its mark')
  t.equal((await admin.get(`${path}&_sort=nmae`)).status, 400)
})

t.test('rejects invalid requests and hides rows of other tenants', async (t) => {
  const missing = await admin.get('Patient/$csv')
  t.match(missing, {
    status: 400,
    body: { issue: [{ details: { text: 'Missing _fields parameter' } }] },
  })
  t.equal((await admin.get('Patient/$csv?_fields=nmae')).status, 400)
  t.equal((await admin.get('Patient/$csv?_fields=name()')).status, 400)
  t.equal((await admin.get('Patient/$csv?_fields=id&nmae=x')).status, 400)
  t.equal((await admin.get('Patient/$csv?_fields=id&_count=x')).status, 400)
  t.equal((await admin.get('Binary/$csv?_fields=id')).status, 400)
  t.equal((await admin.get('Login/$csv?_fields=id')).status, 403)
  const other = await createTenant()
  const { text } = await other.admin.get('Patient/$csv?_fields=id')
  t.equal(text.trim(), '\uFEFFid'.trim())
})

t.test('rejects unknown columns and parameters', async (t) => {
  for (const field of ['nosuch', 'name.nosuch', 'Patient.name', 'constructor', 'name[0]']) {
    const wrong = await admin.get(`Patient/$csv?_fields=id,${encodeURIComponent(field)}`)
    const issue = [{ details: { text: `Unknown field: ${field}` }, expression: ['_fields'] }]
    t.match(wrong, { status: 400, body: { issue } })
  }
  t.equal((await admin.get('Patient/$csv?_fields=id&nosuch=1')).status, 400)
})
