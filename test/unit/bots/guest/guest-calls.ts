/** Requests that each method of a bot's client sends. */
import type { Untyped } from '../../../fixtures/bots/guest.ts'

export const patient = { resourceType: 'Patient', id: '1', active: true }
const bundle = { resourceType: 'Bundle', type: 'batch' }
const operations = [{ op: 'add', path: '/active', value: true }]
const fhirType = 'application/fhir+json'

type Call = (medplum: Untyped) => Promise<unknown>

/** Calls with the method, path, body and content type of their requests. */
export const calls: [string, Call, string, string, unknown?, string?][] = [
  ['createResource', (m) => m.createResource(patient), 'POST', 'Patient', patient, fhirType],
  ['updateResource', (m) => m.updateResource(patient), 'PUT', 'Patient/1', patient, fhirType],
  [
    'upsertResource',
    (m) => m.upsertResource(patient, { identifier: 'a|b c' }),
    'PUT',
    'Patient?identifier=a%7Cb+c',
    patient,
    fhirType,
  ],
  [
    'patchResource',
    (m) => m.patchResource('Patient', '1', operations),
    'PATCH',
    'Patient/1',
    operations,
    'application/json-patch+json',
  ],
  ['deleteResource', (m) => m.deleteResource('Patient', '1'), 'DELETE', 'Patient/1'],
  ['readResource', (m) => m.readResource('Patient', '1'), 'GET', 'Patient/1'],
  ['an id from outside', (m) => m.readResource('Patient', '../x?y'), 'GET', 'Patient/..%2Fx%3Fy'],
  ['readReference', (m) => m.readReference({ reference: 'Patient/1' }), 'GET', 'Patient/1'],
  [
    'readHistory',
    (m) => m.readHistory('Patient', '1', { count: 5, offset: 2 }),
    'GET',
    'Patient/1/_history?_count=5&_offset=2',
  ],
  [
    'readHistory without options',
    (m) => m.readHistory('Patient', '1'),
    'GET',
    'Patient/1/_history',
  ],
  ['readVersion', (m) => m.readVersion('Patient', '1', '2'), 'GET', 'Patient/1/_history/2'],
  ['search by text', (m) => m.search('Patient', '?name=x'), 'GET', 'Patient?name=x'],
  [
    'search by object',
    (m) => m.search('Patient', { name: 'x', _count: 5, gone: undefined }),
    'GET',
    'Patient?name=x&_count=5',
  ],
  [
    'search by pairs',
    (m) =>
      m.search('Patient', [
        ['a', '1'],
        ['a', '2'],
      ]),
    'GET',
    'Patient?a=1&a=2',
  ],
  ['search for all', (m) => m.search('Patient'), 'GET', 'Patient'],
  ['searchOne', (m) => m.searchOne('Patient', 'name=x&_count=9'), 'GET', 'Patient?name=x&_count=1'],
  ['executeBatch', (m) => m.executeBatch(bundle), 'POST', '', bundle, fhirType],
  [
    'graphql',
    (m) => m.graphql('{a}', 'op', { x: 1 }),
    'POST',
    '$graphql',
    { query: '{a}', operationName: 'op', variables: { x: 1 } },
    'application/json',
  ],
  ['validateResource', (m) => m.validateResource(patient), 'POST', 'Patient/$validate', patient],
  ['readPatientEverything', (m) => m.readPatientEverything('1'), 'GET', 'Patient/1/$everything'],
  [
    'valueSetExpand',
    (m) => m.valueSetExpand({ url: 'u', filter: 'f' }),
    'GET',
    'ValueSet/$expand?url=u&filter=f',
  ],
  ['executeBot', (m) => m.executeBot('1', { a: 1 }), 'POST', 'Bot/1/$execute', { a: 1 }, fhirType],
  [
    'executeBot by identifier',
    (m) => m.executeBot({ system: 's', value: 'v' }, 'text', 'text/plain'),
    'POST',
    'Bot/$execute?identifier=s%7Cv',
    'text',
    'text/plain',
  ],
  [
    'sendEmail',
    (m) => m.sendEmail({ to: 'a', subject: 'b' }),
    'POST',
    '/email/v1/send',
    { to: 'a', subject: 'b' },
    'application/json',
  ],
  ['get', (m) => m.get('admin/projects/1'), 'GET', '/admin/projects/1'],
  ['get with a slash', (m) => m.get('/admin/projects/1'), 'GET', '/admin/projects/1'],
  ['get of a FHIR path', (m) => m.get('fhir/R4/Patient/1'), 'GET', 'Patient/1'],
  ['get of an own address', (m) => m.get('https://botica.test/fhir/R4/Patient'), 'GET', 'Patient'],
  ['get of a URL', (m) => m.get(m.fhirUrl('Patient', 'a b')), 'GET', 'Patient/a%20b'],
  ['post', (m) => m.post('admin/x', { a: 1 }), 'POST', '/admin/x', { a: 1 }, fhirType],
  ['post without body', (m) => m.post('admin/x'), 'POST', '/admin/x'],
  [
    'post of a form',
    (m) => m.post('x', { a: '1 2' }, 'application/x-www-form-urlencoded'),
    'POST',
    '/x',
    'a=1+2',
    'application/x-www-form-urlencoded',
  ],
  ['put', (m) => m.put('x', 'text', 'text/plain'), 'PUT', '/x', 'text', 'text/plain'],
  ['patch', (m) => m.patch('x', operations), 'PATCH', '/x', operations],
  ['delete', (m) => m.delete('x'), 'DELETE', '/x'],
  [
    'createBinary',
    (m) => m.createBinary('data', 'f ü.txt', 'text/plain'),
    'POST',
    'Binary?_filename=f%20%C3%BC.txt',
    'data',
    'text/plain',
  ],
]
