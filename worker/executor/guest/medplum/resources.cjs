/** Reading and filling the parts that FHIR resources have in common. */

const { OperationOutcomeError, badRequest } = require('./outcomes.cjs')
const { formatCodeableConcept, formatHumanName } = require('./format.cjs')
const { isObject } = require('./values.cjs')

const people = ['Patient', 'Practitioner', 'RelatedPerson']

function isResource(value, resourceType) {
  if (!isObject(value) || !('resourceType' in value)) return false
  return resourceType === undefined || value.resourceType === resourceType
}

function isReference(value, resourceType) {
  if (!isObject(value) || typeof value.reference !== 'string') return false
  if (resourceType === undefined) return true
  return (
    value.reference.startsWith(`${resourceType}/`) || value.reference.startsWith(`${resourceType}?`)
  )
}

function getReferenceString(input) {
  if (isReference(input)) return input.reference
  return isResource(input) && typeof input.id === 'string'
    ? `${input.resourceType}/${input.id}`
    : undefined
}

/** `[type, id]` of a literal reference. */
function parseReference(reference) {
  if (!reference?.reference) {
    throw new OperationOutcomeError(badRequest('Reference missing reference property.'))
  }
  const [type, id] = reference.reference.split('/')
  if (!type || !id) {
    throw new OperationOutcomeError(badRequest('Unable to parse reference string.'))
  }
  return [type, id]
}

function resolveId(input) {
  if (!input) return undefined
  if (input.reference) return input.reference.split('/')[1]
  return input.id
}

/** Returns the name by resource type; undefined or empty when it has none. */
function ownName(resource) {
  const { resourceType } = resource
  if (people.includes(resourceType)) return formatHumanName(resource.name?.[0])
  if (resourceType === 'Device') return resource.deviceName?.[0]?.name
  if (resourceType === 'Subscription') return resource.criteria
  if (resourceType === 'User') return resource.email
  return undefined
}

function isConcept(value) {
  const isCoding = (coding) => typeof coding?.code === 'string'
  return Array.isArray(value?.coding) && value.coding.every(isCoding)
}

/** Returns a display name, or the reference without one. */
function getDisplayString(resource) {
  const named = ownName(resource)
  if (named) return named
  if (resource.resourceType === 'MedicationRequest' && resource.medicationCodeableConcept) {
    return formatCodeableConcept(resource.medicationCodeableConcept)
  }
  if (typeof resource.name === 'string' && resource.name) return resource.name
  const code = Array.isArray(resource.code) ? resource.code[0] : resource.code
  if (isConcept(code)) return formatCodeableConcept(code)
  if (typeof code?.text === 'string') return code.text
  return getReferenceString(resource) ?? ''
}

function createReference(resource) {
  const reference = getReferenceString(resource) ?? 'undefined/undefined'
  const display = getDisplayString(resource)
  return display === reference ? { reference } : { reference, display }
}

function getIdentifier(resource, system) {
  return [resource.identifier ?? []].flat().find((found) => found.system === system)?.value
}

function setIdentifier(resource, system, value) {
  resource.identifier ??= []
  const found = [resource.identifier].flat().find((identifier) => identifier.system === system)
  if (found) found.value = value
  else resource.identifier.push({ system, value })
}

function getExtension(resource, ...urls) {
  return urls.reduce(
    (found, url) => found?.extension?.find((extension) => extension.url === url),
    resource,
  )
}

function getExtensionValue(resource, ...urls) {
  const extension = getExtension(resource, ...urls)
  if (!isObject(extension)) return undefined
  const key = Object.keys(extension).find((name) => name.startsWith('value'))
  return key === undefined ? undefined : extension[key]
}

function getCodeBySystem(concept, system) {
  return concept.coding?.find((coding) => coding.system === system)?.code
}

function setCodeBySystem(concept, system, code) {
  concept.coding ??= []
  const found = concept.coding.find((coding) => coding.system === system)
  if (found) found.code = code
  else concept.coding.push({ system, code })
}

function findResourceByCode(resources, code, system) {
  const wanted = typeof code === 'string' ? code : getCodeBySystem(code, system)
  return resources.find((resource) => getCodeBySystem(resource.code ?? {}, system) === wanted)
}

function addProfileToResource(resource, profileUrl) {
  const profiles = resource.meta?.profile ?? []
  if (!profiles.includes(profileUrl)) {
    resource.meta = { ...resource.meta, profile: [...profiles, profileUrl] }
  }
  return resource
}

/** Returns all items with a linkId and answers, in document order. */
function answeredItems(items) {
  return (items ?? []).flatMap((item) => {
    const own = item.linkId && item.answer?.length ? [item] : []
    return [...own, ...answeredItems(item.item)]
  })
}

/** Returns the first answer by linkId; of repeated items the last one counts. */
function getQuestionnaireAnswers(response) {
  const items = answeredItems(response.item)
  return Object.fromEntries(items.map((item) => [item.linkId, item.answer[0]]))
}

/** Returns all answers by linkId, merging repeated items. */
function getAllQuestionnaireAnswers(response) {
  const answers = {}
  for (const item of answeredItems(response.item)) {
    answers[item.linkId] = [...(answers[item.linkId] ?? []), ...item.answer]
  }
  return answers
}

module.exports = {
  addProfileToResource,
  createReference,
  findResourceByCode,
  getAllQuestionnaireAnswers,
  getCodeBySystem,
  getDisplayString,
  getExtension,
  getExtensionValue,
  getIdentifier,
  getQuestionnaireAnswers,
  getReferenceString,
  isReference,
  isResource,
  parseReference,
  resolveId,
  setCodeBySystem,
  setIdentifier,
}
