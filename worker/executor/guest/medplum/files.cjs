/** Binary content and its usual resources. */

const {
  answerBytes,
  ask,
  call,
  findHeader,
  isForeign,
  send,
  serverPath,
} = require('./requests.cjs')
const { OperationOutcomeError, badRequest } = require('./outcomes.cjs')
const { createReference } = require('./resources.cjs')
const { ContentType } = require('./constants.cjs')

/** Accepts both forms of the SDK: one object, or data, filename and content type. */
function readArguments([first, second, third, , fifth]) {
  const isOptions = typeof first === 'object' && first !== null && 'data' in first
  if (isOptions) return [first, second]
  return [{ data: first, filename: second, contentType: third }, fifth]
}

async function createBinary(...given) {
  const [{ data, filename, contentType, securityContext }, options] = readArguments(given)
  const owner = securityContext?.reference
  const headers = { ...options?.headers, ...(owner ? { 'X-Security-Context': owner } : {}) }
  const path = filename ? `Binary?_filename=${encodeURIComponent(filename)}` : 'Binary'
  return ask('POST', path, { body: data, contentType, options: { ...options, headers } })
}

async function readText(data) {
  if (typeof data === 'string') return data
  if (typeof data?.text === 'function') return data.text()
  const { toBytes, utf8Decode } = require('../web/encoding.cjs')
  return utf8Decode(toBytes(data))
}

/**
 * A clinical document is XML with a specific media type.
 * http://www.hl7.org/implement/standards/product_brief.cfm?product_id=7
 */
async function detectContentType({ contentType, data }) {
  if (contentType !== ContentType.XML) return contentType
  const text = await readText(data)
  const isDocument = text.includes('<ClinicalDocument') && text.includes('urn:hl7-org:v3')
  return isDocument ? ContentType.CDA_XML : contentType
}

async function createAttachment(...given) {
  const [file, options] = readArguments(given)
  const contentType = await detectContentType(file)
  const binary = await createBinary({ ...file, contentType }, options)
  return { contentType, url: binary.url, title: file.filename }
}

/** The resource comes first, as the Binary's security context. */
async function createMedia(medplum, { additionalFields, ...file }, options) {
  const content = { contentType: file.contentType }
  const draft = { resourceType: 'Media', status: 'preparation', content, ...additionalFields }
  const media = await medplum.createResource(draft)
  const attachment = await createAttachment(guardedBy(media, file), options)
  return medplum.updateResource({ ...media, status: 'completed', content: attachment })
}

async function createDocumentReference(medplum, { additionalFields, ...file }, options) {
  const content = [{ attachment: { contentType: file.contentType } }]
  const draft = {
    resourceType: 'DocumentReference',
    status: 'current',
    content,
    ...additionalFields,
  }
  const document = await medplum.createResource(draft)
  const attachment = await createAttachment(guardedBy(document, file), options)
  return medplum.updateResource({ ...document, content: [{ attachment }] })
}

function guardedBy(resource, file) {
  return { ...file, securityContext: file.securityContext ?? createReference(resource) }
}

function contextElements(resource) {
  const { resourceType, encounter, subject } = resource
  if (resourceType === 'Encounter') return { encounter: createReference(resource), subject }
  if (resourceType === 'ServiceRequest') return { encounter, subject }
  return resourceType === 'Patient' ? { subject: createReference(resource) } : {}
}

async function createComment(medplum, resource, text, options) {
  const profile = medplum.getProfile()
  const comment = {
    resourceType: 'Communication',
    status: 'completed',
    basedOn: [createReference(resource)],
    ...contextElements(resource),
    sender: profile === undefined ? undefined : createReference(profile),
    sent: new Date().toISOString(),
    payload: [{ contentString: text }],
  }
  return medplum.createResource(comment, options)
}

/** Accepts both forms of the SDK: one object, or document, file name, table layouts and fonts. Returns a Binary. */
async function createPdf(first, ...others) {
  const [filename, tableLayouts, fonts] = others
  const isOptions = typeof first?.docDefinition === 'object'
  const given = isOptions ? first : { docDefinition: first, filename, tableLayouts, fonts }
  const pdf = require('../modules.cjs').libraryNamed('#pdf')
  // The service looks for this method's name in bot code.
  if (pdf === undefined) throw new OperationOutcomeError(badRequest('PDF creation not enabled'))
  const data = await pdf.createPdf(given)
  const { filename: name, securityContext } = given
  const file = { data, filename: name, contentType: 'application/pdf', securityContext }
  return createBinary(file, isOptions ? others[0] : undefined)
}

function binaryPath(url) {
  return /^Binary\//.test(url) ? url : serverPath(url)
}

/** Returns the answer with its whole body, in parts. */
async function fetchForeign(url, options) {
  const headers = { Accept: '*/*', ...options?.headers }
  const answer = await call('fetch', { url, method: 'GET', headers })
  if (answer.status >= 400) {
    throw new OperationOutcomeError(badRequest(`Download failed with status ${answer.status}`))
  }
  const { rest } = answer
  const more = rest === undefined ? [] : [await call('body', { id: rest, isWhole: true })]
  const parts = [answer, ...more].map(({ body }) => answerBytes({ body, encoding: 'base64' }))
  return [answer, parts]
}

async function fetchOwn(url, options) {
  const answer = await send('GET', binaryPath(url), { options })
  return [answer, [answerBytes(answer)]]
}

/** Returns the content as a Blob. A signed URL of another storage host goes through fetch. */
async function download(address, options) {
  const { Blob } = require('../web/blob.cjs')
  const url = String(address)
  const headers = { ...options?.headers, Accept: '*/*' }
  const [answer, parts] = isForeign(url)
    ? await fetchForeign(url, options)
    : await fetchOwn(url, { ...options, headers })
  return new Blob(parts, { type: findHeader(answer, 'content-type') })
}

module.exports = {
  createAttachment,
  createBinary,
  createComment,
  createDocumentReference,
  createMedia,
  createPdf,
  download,
}
