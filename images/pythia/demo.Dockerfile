# The image of the Dockerfile beside this one, as the demo builds it: without a registry (images/build.sh).
FROM gleaner/python:demo
# pythia/lib is the generator itself; its data (particles, tunes, parton densities) is found through PYTHIA8DATA.
COPY pythia /opt/pythia
COPY generate.py /opt/pythia/
ENV PYTHONPATH=/opt/pythia/lib PYTHIA8DATA=/opt/pythia/share/xmldoc PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["python3", "/opt/pythia/generate.py"]
