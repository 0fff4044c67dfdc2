/** Content of Binary resources, and the resources that usually go with it. */

const { answerBytes, ask, call, headerOf, isForeign, send, serverPath } = require('./requests.cjs')
const { OperationOutcomeError, badRequest } = require('./outcomes.cjs')
const { createReference, getReferenceString } = require('./resources.cjs')

/** Both forms of the SDK: one object, or data, filename and content type. */
function readArguments([first, second, third, , fifth]) {
  const isOptions = typeof first === 'object' && first !== null && 'data' in first
  if (isOptions) return [first, second]
  return [{ data: first, filename: second, contentType: third }, fifth]
}

async function contentOf(data) {
  return typeof data?.arrayBuffer === 'function' ? data.arrayBuffer() : data
}

async function createBinary(...given) {
  const [{ data, filename, contentType, securityContext }, options] = readArguments(given)
  const owner = securityContext === undefined ? undefined : getReferenceString(securityContext)
  const headers = { ...options?.headers, ...(owner ? { 'X-Security-Context': owner } : {}) }
  const path = filename ? `Binary?_filename=${encodeURIComponent(filename)}` : 'Binary'
  return ask('POST', path, {
    body: await contentOf(data),
    contentType,
    options: { ...options, headers },
  })
}

async function createAttachment(...given) {
  const [{ filename, contentType }] = readArguments(given)
  const binary = await createBinary(...given)
  return { contentType, url: binary.url, title: filename }
}

/** The resource comes first, so that the Binary can be guarded by it. */
async function createMedia(medplum, { additionalFields, ...file }, options) {
  const { contentType } = file
  const draft = { resourceType: 'Media', ...additionalFields, content: { contentType } }
  const media = await medplum.createResource({ status: 'completed', ...draft }, options)
  const content = await createAttachment({ ...file, securityContext: createReference(media) })
  return medplum.updateResource({ ...media, content }, options)
}

async function createDocumentReference(medplum, { additionalFields, ...file }, options) {
  const { contentType } = file
  const draft = { resourceType: 'DocumentReference', status: 'current', ...additionalFields }
  const content = [{ attachment: { contentType } }]
  const document = await medplum.createResource({ ...draft, content }, options)
  const attachment = await createAttachment({ ...file, securityContext: createReference(document) })
  return medplum.updateResource({ ...document, content: [{ attachment }] }, options)
}

/** A Communication about the resource, sent by the bot. */
async function createComment(medplum, resource, text, options) {
  const profile = medplum.getProfile()
  const encounter = resource.resourceType === 'Encounter' ? createReference(resource) : undefined
  const subject = resource.resourceType === 'Patient' ? createReference(resource) : resource.subject
  const comment = {
    resourceType: 'Communication',
    status: 'completed',
    basedOn: [createReference(resource)],
    encounter,
    subject,
    sender: profile === undefined ? undefined : createReference(profile),
    sent: new Date().toISOString(),
    payload: [{ contentString: text }],
  }
  return medplum.createResource(comment, options)
}

function binaryPath(url) {
  return /^Binary\//.test(url) ? url : serverPath(url)
}

async function fetchForeign(url, options) {
  const headers = { Accept: '*/*', ...options?.headers }
  const answer = await call('fetch', { url, method: 'GET', headers })
  if (answer.status >= 400) {
    throw new OperationOutcomeError(badRequest(`Download failed with status ${answer.status}`))
  }
  return { ...answer, encoding: 'base64' }
}

/** The content as a Blob. A signed address of another storage host goes through fetch. */
async function download(address, options) {
  const { Blob } = require('./blob.cjs')
  const url = String(address)
  const headers = { ...options?.headers, Accept: '*/*' }
  const answer = isForeign(url)
    ? await fetchForeign(url, options)
    : await send('GET', binaryPath(url), { options: { ...options, headers } })
  return new Blob([answerBytes(answer)], { type: headerOf(answer, 'content-type') })
}

module.exports = {
  createAttachment,
  createBinary,
  createComment,
  createDocumentReference,
  createMedia,
  download,
}
